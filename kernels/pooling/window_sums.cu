// avg_pool2d and lp_pool2d of NCHW planes, for which max_pool2d.cu has the ladder, and
// adaptive_avg_pool2d, which has one in include/pool_adaptive.cuh.
// Columns are added first, then rows, in float32; gradients are gathered, window by window.
#include "pool_adaptive.cuh"
#include "pool_tile.cuh"
