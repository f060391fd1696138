// avg_pool2d_nhwc and max_pool2d_nhwc: include/pool_nhwc.cuh has the ladder.
#include "pool_nhwc.cuh"
