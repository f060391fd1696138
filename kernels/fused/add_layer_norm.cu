// Residual add and layer normalization in one pass. The schedules are those of layer_norm
// (include/row_moments.cuh, include/row_map.cuh).
//
// Forward
// 1. Two kernels, add and layer_norm: h is written, then read again: 5 streams where 4 must move.
// 2. One kernel: h is formed in registers, rounded as it will be stored, stored at once (the store
//    overlaps the reduction), and normalized from the rounded registers: both agree to the bit on
//    what the norm is of.
//
// Backward
// 1. Two kernels, the norm's backward and an add of dh: dnorm is written and read again.
// 2. One kernel: dh is asked for before the row's sums and added in float32 before the only rounding.
#include "row_moments.cuh"

template <typename T, class Plan, Reuse kStores, Reuse kH = kStores>
struct AddLayerNormForward : LayerNormForward<T, Plan, kStores>, Placed {
  using Norm = LayerNormForward<T, Plan, kStores>;
  using typename Norm::Kept;
  using typename Norm::Span;
  using Loaded = Two<T, Norm::kWidth>;
  const T* residual;
  T* h;

  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return {cut.read.template load<kReuse>(this->x, v),
            cut.read.template load<kReuse>(residual, v)};
  }

  __device__ Kept keep(const Span& cut, int v, const Loaded& loaded) const {
    float sum[Norm::kWidth];
#pragma unroll
    for (int i = 0; i < Norm::kWidth; ++i) sum[i] = loaded.a[i] + loaded.b[i];
    const Kept kept = Kept::rounded(sum);
    cut.written.template store<kH>(h, v, kept);
    return kept;
  }

  // h was written by this very thread: a plain load sees it.
  __device__ Kept again(const Span& cut, int v) const {
    return cut.read.template load<Reuse::kSoon>(h, v);
  }

  __device__ Moments begin(Nothing) const { return {}; }

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      Nothing early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_layer_norm_forward(const T* x, const T* residual, const T* weight, const T* bias, T* h, T* y,
                           float* mean, float* rstd, long long rows, int columns, int shift,
                           int parameter_shift, float inverse_columns, float eps) {
  rows_in_registers<Plan>(AddLayerNormForward<T, Plan, kStores>{
      {x, weight, bias, y, mean, rstd, rows, columns, shift, parameter_shift, inverse_columns, eps},
      {},
      residual,
      h});
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_layer_norm_forward_steps(const T* x, const T* residual, const T* weight, const T* bias, T* h,
                                 T* y, float* mean, float* rstd, long long rows, int columns,
                                 int shift, int parameter_shift, float inverse_columns, float eps) {
  rows_in_steps<Plan, kStaged>(
      AddLayerNormForward<T, Plan, kStores, kStaged ? kStores : Reuse::kSoon>{
          {x, weight, bias, y, mean, rstd, rows, columns, shift, parameter_shift, inverse_columns,
           eps},
          {},
          residual,
          h});
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_layer_norm_backward(const T* dy, const T* dh, const T* h, const T* weight,
                            const float* mean, const float* rstd, T* dx, float* partial_weight,
                            float* partial_bias, long long rows, int columns, int shift,
                            int parameter_shift, float inverse_columns) {
  LayerNormBackward<T>{dy, dh, h, weight, mean, rstd, dx, partial_weight, partial_bias, rows,
                       columns, shift, parameter_shift, inverse_columns}
      .template in_registers<Plan, true, kStores>();
}

template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_layer_norm_projections(const T* dy, const T* dh, const T* h, const T* weight,
                               const float* mean, const float* rstd, float* projected,
                               long long rows, int columns, int shift, int parameter_shift,
                               float inverse_columns) {
  LayerNormBackward<T>{dy, dh, h, weight, mean, rstd, nullptr, nullptr, nullptr, rows, columns,
                       shift, parameter_shift, inverse_columns}
      .template projections<Plan>(projected);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    add_layer_norm_backward_tiles(const T* dy, const T* dh, const T* h, const T* weight,
                                  const float* mean, const float* rstd, const float* projected,
                                  T* dx, float* partial_weight, float* partial_bias, long long rows,
                                  int columns, int shift, int parameter_shift,
                                  float inverse_columns) {
  LayerNormBackward<T>{dy, dh, h, weight, mean, rstd, dx, partial_weight, partial_bias, rows,
                       columns, shift, parameter_shift, inverse_columns}
      .template in_tiles<Plan, true, kStores>(projected);
}
