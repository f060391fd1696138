// Residual add and RMSNorm in one pass. The schedules are those of rms_norm (include/row_rms.cuh).
//
// Forward
// 1. Two kernels, add and rms_norm: h is written, then read again: 5 streams where 4 must move.
// 2. One kernel: h is formed in registers, rounded as it will be stored, stored at once (the store
//    overlaps the reduction), and normalized from the rounded registers: both agree to the bit on
//    what the norm is of.
//
// Backward
// 1. Two kernels, the norm's backward and an add of dh: dnorm is written and read again.
// 2. One kernel: dh is loaded with dy and h and added in float32 before the only rounding.
#include "row_rms.cuh"
#include "row_rms_cluster.cuh"

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_rms_norm_forward(const T* x, const T* residual, const T* weight, T* h, T* y, float* rstd,
                         long long rows, int columns, int shift, int weight_shift,
                         float inverse_columns, float eps) {
  RmsForward<T>{x, residual, weight, h, y, rstd, rows, columns, shift, weight_shift,
                inverse_columns, eps}
      .template in_registers<Plan, true, kStores>();
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_rms_norm_forward_steps(const T* x, const T* residual, const T* weight, T* h, T* y,
                               float* rstd, long long rows, int columns, int shift,
                               int weight_shift, float inverse_columns, float eps) {
  rms_of_long_rows<Plan, true, kStaged, kStores>(
      RmsForward<T>{x, residual, weight, h, y, rstd, rows, columns, shift, weight_shift,
                    inverse_columns, eps});
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_rms_norm_backward(const T* dy, const T* dh, const T* h, const T* weight, const float* rstd,
                          T* dx, float* partials, long long rows, int columns, int shift,
                          int weight_shift, float inverse_columns) {
  RmsBackward<T>{dy, dh, h, weight, rstd, dx, partials, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template in_registers<Plan, true, kStores>();
}

template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_rms_norm_projections(const T* dy, const T* dh, const T* h, const T* weight,
                             const float* rstd, float* projected, long long rows, int columns,
                             int shift, int weight_shift, float inverse_columns) {
  RmsBackward<T>{dy, dh, h, weight, rstd, nullptr, nullptr, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template projections<Plan>(projected);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_rms_norm_backward_tiles(const T* dy, const T* dh, const T* h, const T* weight,
                                const float* rstd, const float* projected, T* dx, float* partials,
                                long long rows, int columns, int shift, int weight_shift,
                                float inverse_columns) {
  RmsBackward<T>{dy, dh, h, weight, rstd, dx, partials, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template in_tiles<Plan, true, kStores>(projected);
}
