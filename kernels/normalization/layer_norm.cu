// Layer normalization of rows. The arithmetic is in include/row_moments.cuh, the walk over rows in
// include/row_map.cuh, how rows are cut into vectors in include/row.cuh, which plan a shape gets in
// backends/cuda_layer_norm.py.
//
// Forward
// 1. Three loops (mean, variance, output), a thread per row: right, and nothing is coalesced.
// 2. A block per row, vectors of 16 bytes: x is read three times, or twice with E[x^2] - E[x]^2,
//    which cancels.
// 3. The row stays in registers, packed: x is read once, and the deviations are taken from the mean.
// 4. Each thread reduces what it holds to count, mean and deviations before the first barrier; two
//    sums over the row merge them.
// 5. A persistent grid, and the next row's loads before this row's sums. Weight and bias come from
//    L1 under those loads.
// 6. Rows too long for registers wait in shared memory, longer ones in that of a cluster (sm_90 and
//    later), still longer ones are read twice: the moments of each step are merged as those of
//    threads are.
//
// Backward
// 1. dx by rows, dweight and dbias by columns: dy and x are read twice.
// 2. One pass: a block keeps both column sums in float32 while it walks its rows, and leaves them as
//    partial sums that column_sums adds in a fixed order.
// 3. Mean and rstd come from forward: one barrier per row, for both projections.
// 4. The next row's loads before this row's sums, where registers are left: the column sums take 32
//    of them, and leave two blocks of 256 threads.
// 5. Rows too long for registers: a first kernel leaves each row's projections, a second one owns
//    tiles of columns.
#include "row_moments.cuh"

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    layer_norm_forward(const T* x, const T* weight, const T* bias, T* y, float* mean, float* rstd,
                       long long rows, int columns, int shift, int parameter_shift,
                       float inverse_columns, float eps) {
  rows_in_registers<Plan>(LayerNormForward<T, Plan, kStores>{
      x, weight, bias, y, mean, rstd, rows, columns, shift, parameter_shift, inverse_columns, eps});
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    layer_norm_forward_steps(const T* x, const T* weight, const T* bias, T* y, float* mean,
                             float* rstd, long long rows, int columns, int shift,
                             int parameter_shift, float inverse_columns, float eps) {
  rows_in_steps<Plan, kStaged>(LayerNormForward<T, Plan, kStores>{
      x, weight, bias, y, mean, rstd, rows, columns, shift, parameter_shift, inverse_columns, eps});
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    layer_norm_backward(const T* dy, const T* x, const T* weight, const float* mean,
                        const float* rstd, T* dx, float* partial_weight, float* partial_bias,
                        long long rows, int columns, int shift, int parameter_shift,
                        float inverse_columns) {
  LayerNormBackward<T>{dy, nullptr, x, weight, mean, rstd, dx, partial_weight, partial_bias, rows,
                       columns, shift, parameter_shift, inverse_columns}
      .template in_registers<Plan, false, kStores>();
}

template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    layer_norm_projections(const T* dy, const T* x, const T* weight, const float* mean,
                           const float* rstd, float* projected, long long rows, int columns,
                           int shift, int parameter_shift, float inverse_columns) {
  LayerNormBackward<T>{dy, nullptr, x, weight, mean, rstd, nullptr, nullptr, nullptr, rows, columns,
                       shift, parameter_shift, inverse_columns}
      .template projections<Plan>(projected);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    layer_norm_backward_tiles(const T* dy, const T* x, const T* weight, const float* mean,
                              const float* rstd, const float* projected, T* dx,
                              float* partial_weight, float* partial_bias, long long rows,
                              int columns, int shift, int parameter_shift, float inverse_columns) {
  LayerNormBackward<T>{dy, nullptr, x, weight, mean, rstd, dx, partial_weight, partial_bias, rows,
                       columns, shift, parameter_shift, inverse_columns}
      .template in_tiles<Plan, false, kStores>(projected);
}
