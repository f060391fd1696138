// Softmax of rows, its logarithm, and softmax of masked and of causal scores. The arithmetic is in
// include/row_softmax.cuh, the walk over rows in include/row_map.cuh, how rows are cut into vectors
// in include/row.cuh, which plan a shape gets in backends/cuda_row_map.py.
//
// Forward
// 1. Three loops (maximum, sum, quotient), a thread per row: x is read three times, lane by lane
//    from another row.
// 2. A block per row, vectors of 16 bytes: coalesced, still three reads.
// 3. The row stays in registers, then one read. The exponentials stay there too, as float32: one
//    each, where the special function units would fall behind HBM with two.
// 4. The next row's loads are issued before this row's reductions.
// 5. Rows too long for registers wait in shared memory, packed, while the online form finds maximum
//    and sum in one sweep; longer ones in that of a cluster (sm_90 and later); still longer ones
//    are read twice.
// 6. A mask is loaded beside x, a byte an element. Causal rows end at their own column: what lies
//    above the diagonal is written and never read.
//
// Backward
// 1. dx = (dy - sum(y * dy)) * y has one sum per row: dy and y stay in registers or in shared
//    memory until it is known.
#include "row_softmax.cuh"

template <typename T, class Plan, Reuse kStores, Form kForm>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_forward(const T* x, const unsigned char* mask, T* y, long long rows, int columns,
                    int shift, unsigned long long reciprocal, float scale) {
  const SoftmaxForward<T, Plan, kForm, kStores> body(x, mask, y, {rows, columns, shift, reciprocal},
                                                     scale);
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, Form kForm, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_forward_steps(const T* x, const unsigned char* mask, T* y, long long rows, int columns,
                          int shift, unsigned long long reciprocal, float scale) {
  const SoftmaxForward<T, Plan, kForm, kStores> body(x, mask, y, {rows, columns, shift, reciprocal},
                                                     scale);
  rows_in_steps<Plan, kStaged>(body);
}

template <typename T, class Plan, Reuse kStores, Form kForm>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_backward(const T* dy, const T* y, T* dx, long long rows, int columns, int shift,
                     unsigned long long reciprocal, float scale) {
  const SoftmaxBackward<T, Plan, kForm, kStores> body(dy, y, dx, {rows, columns, shift, reciprocal},
                                                      scale);
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, Form kForm, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_backward_steps(const T* dy, const T* y, T* dx, long long rows, int columns, int shift,
                           unsigned long long reciprocal, float scale) {
  const SoftmaxBackward<T, Plan, kForm, kStores> body(dy, y, dx, {rows, columns, shift, reciprocal},
                                                      scale);
  rows_in_steps<Plan, kStaged>(body);
}
