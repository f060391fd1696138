// Batch normalization and relu in one: channel.cuh has the ladder, channel_first.cuh the kernels.
//
// Forward
// 1. Two kernels, batch_norm and relu: h is written and read again, 5 passes in training.
// 2. relu is applied before the only rounding: 3, as batch_norm alone.
//
// Backward
// 1. Two kernels: relu reads y and dy and writes dh, which batch_norm reads twice: 8 passes.
// 2. The sign of pre is computed again from x, which is there: 5, and no mask.
#include "activation.cuh"
#include "channel_first.cuh"

template <typename T>
struct ThenRelu : Relu<T> {
  static constexpr bool kLinear = false;
};
