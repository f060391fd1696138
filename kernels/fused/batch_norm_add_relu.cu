// Batch normalization, residual and relu, the end of a residual block: include/channel_mask.cuh.
//
// Forward
// 1. Three kernels, batch_norm, add and relu: 8 passes.
// 2. One rewriting kernel: x twice, residual once, y once: 4, and a bit per element for backward,
//    where x alone does not tell what relu let pass.
//
// Backward
// 1. relu, then batch_norm: relu reads y and dy and writes dresidual, which batch_norm reads twice.
// 2. dy, x and the bits are read twice, dresidual is written with dx.
#include "channel_mask.cuh"
