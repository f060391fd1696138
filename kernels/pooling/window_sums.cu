// avg_pool2d, adaptive_avg_pool2d and lp_pool2d of NCHW planes: max_pool2d.cu has the ladder.
// Columns are added first, then rows, in float32; gradients are gathered, window by window.
#include "pool_tile.cuh"
