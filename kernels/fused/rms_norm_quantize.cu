// RMSNorm and quantization in one pass, with or without a residual add. The schedules are those of
// rms_norm (include/row_rms.cuh), codes and scales those of include/quantize.cuh.
//
// 1. Kernel after kernel: y is written and read again, which is most of the traffic.
// 2. One kernel: codes are made of the registers that y would be stored from. A block of 16 lies in
//    neighbouring lanes. No rstd is stored: nobody goes backward.
#include "rms_quantize.cuh"

template <typename T, class Plan, Reuse kStores, bool kResidual>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    norm_by_tensor(const T* x, const T* residual, const T* weight, const float* scale, T* h,
                   unsigned char* q, long long rows, int columns, int shift, int weight_shift,
                   float inverse_columns, float eps) {
  RmsForward<T, CodesByTensor>{x, residual, weight, h, {q, GivenScale::of(scale)}, nullptr, rows,
                               columns, shift, weight_shift, inverse_columns, eps}
      .template in_registers<Plan, kResidual, kStores>();
}

template <typename T, class Plan, Reuse kStores, bool kResidual, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    norm_by_tensor_steps(const T* x, const T* residual, const T* weight, const float* scale, T* h,
                         unsigned char* q, long long rows, int columns, int shift,
                         int weight_shift, float inverse_columns, float eps) {
  RmsForward<T, CodesByTensor>{x, residual, weight, h, {q, GivenScale::of(scale)}, nullptr, rows,
                               columns, shift, weight_shift, inverse_columns, eps}
      .template in_steps<Plan, kResidual, kStaged, kStores>();
}

template <typename T, class Plan, Reuse kStores, bool kResidual>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    norm_by_nv_block(const T* x, const T* residual, const T* weight, const float* scale, T* h,
                     unsigned char* q, unsigned char* scales, long long rows, int columns,
                     int shift, int weight_shift, float inverse_columns, float eps) {
  RmsForward<T, CodesByNvBlock>{x, residual, weight, h, {q, NvScales::of(scales, scale)}, nullptr,
                                rows, columns, shift, weight_shift, inverse_columns, eps}
      .template in_registers<Plan, kResidual, kStores>();
}

template <typename T, class Plan, Reuse kStores, bool kResidual, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    norm_by_nv_block_steps(const T* x, const T* residual, const T* weight, const float* scale,
                           T* h, unsigned char* q, unsigned char* scales, long long rows,
                           int columns, int shift, int weight_shift, float inverse_columns,
                           float eps) {
  RmsForward<T, CodesByNvBlock>{x, residual, weight, h, {q, NvScales::of(scales, scale)}, nullptr,
                                rows, columns, shift, weight_shift, inverse_columns, eps}
      .template in_steps<Plan, kResidual, kStaged, kStores>();
}
