// bias_dropout_residual with its mask replayed, in bytes and in bits: row_dropout.cuh has the ladder.
//
// Three kernels move 7 streams forward, where this one moves 3: x + bias and what dropout leaves of
// it stay in registers. Backward sums the gradient of the bias in the pass that makes it.
#include "row_dropout.cuh"
