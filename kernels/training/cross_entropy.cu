// Cross-entropy of logits and classes. The arithmetic is in include/row_cross_entropy.cuh, the walk
// over rows in include/row_map.cuh, which plan a shape gets in backends/cuda_row_map.py.
//
// 1. log_softmax, then a gather of one logarithm a row: x is read, the logarithms are written, and
//    backward writes a matrix of zeros with one number a row before it reads both.
// 2. Forward reads x and writes two numbers a row. One sweep in the online form, whatever the
//    length: nothing of the row waits. Backward reads x again and writes dx: three matrices less.
// 3. Where the gradient of the loss is known beforehand, x need not be read twice: the row waits in
//    registers or shared memory for its sum and becomes its own gradient. Rows longer than shared
//    memory are read a second time, from the cache if they are still there.
#include "row_cross_entropy.cuh"

template <typename T, class Plan, Reuse kStores, bool kSmoothed, bool kGradient>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    cross_entropy(const T* x, const long long* target, const float* dloss, float* loss, float* lse,
                  T* dx, long long rows, int columns, int shift, float per_class,
                  float smoothing) {
  const CrossEntropy<T, Plan, kSmoothed, kGradient, kStores> body(
      {{}, rows, columns, shift, per_class, smoothing, x, target}, dloss, loss, lse, dx);
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, bool kSmoothed, bool kGradient, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    cross_entropy_steps(const T* x, const long long* target, const float* dloss, float* loss,
                        float* lse, T* dx, long long rows, int columns, int shift,
                        float per_class, float smoothing) {
  const CrossEntropy<T, Plan, kSmoothed, kGradient, kStores, !kStaged> body(
      {{}, rows, columns, shift, per_class, smoothing, x, target}, dloss, loss, lse, dx);
  rows_in_steps<Plan, kStaged>(body);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    cross_entropy_backward(const T* x, const long long* target, const float* dloss,
                           const float* lse, T* dx, long long rows, int columns, int shift,
                           float per_class, float smoothing) {
  const CrossEntropyBackward<T, Plan, kStores> body(
      {{}, rows, columns, shift, per_class, smoothing, x, target}, dloss, lse, dx);
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    cross_entropy_backward_steps(const T* x, const long long* target, const float* dloss,
                                 const float* lse, T* dx, long long rows, int columns, int shift,
                                 float per_class, float smoothing) {
  const CrossEntropyBackward<T, Plan, kStores> body(
      {{}, rows, columns, shift, per_class, smoothing, x, target}, dloss, lse, dx);
  rows_in_steps<Plan, kStaged>(body);
}
