// bias_relu_max_pool2d: max_pool2d.cu has the ladder, include/pool_max.cuh the rule.
//
// 1. Three kernels: 5 times the image moves.
// 2. The bias is one number of a plane, which a thread of a strip keeps; relu keeps the order, so it
//    is applied to what is left of a window.
// 3. Backward needs neither x nor the sign of anything: a clipped window has no place. dbias is the
//    sum of windows that are loaded anyway; a warp adds those of its planes and leaves one partial
//    sum per plane and band, which column_sums adds in a fixed order.
#include "column.cuh"
#include "pool_tile.cuh"
