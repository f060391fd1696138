// Group and instance normalization: channel_group.cuh has the arithmetic and the ladder of
// backward, row_map.cuh and row_moments.cuh that of forward, where a slab is a row.
#include "channel_group.cuh"

template <typename T, class Plan, Reuse kStores, OneChannel kOne>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    group_norm_forward(const T* x, const T* weight, const T* bias, T* y, float* mean, float* rstd,
                       long long slabs, int elements, int shift, float inverse_elements, float eps,
                       int groups, int group_channels, int pixels,
                       unsigned int group_multiplier, int group_bits,
                       unsigned int plane_multiplier, int plane_bits) {
  rows_in_registers<Plan>(GroupNormForward<T, Plan, kStores, kOne>{
      {x, weight, bias, y, mean, rstd, slabs, elements, shift, 0, inverse_elements, eps},
      groups, group_channels, pixels, {group_multiplier, group_bits},
      {plane_multiplier, plane_bits}});
}

// Slabs that do not fit in registers: they wait in shared memory, or are read again.
template <typename T, class Plan, Reuse kStores, OneChannel kOne, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    group_norm_forward_steps(const T* x, const T* weight, const T* bias, T* y, float* mean,
                             float* rstd, long long slabs, int elements, int shift,
                             float inverse_elements, float eps, int groups, int group_channels,
                             int pixels, unsigned int group_multiplier, int group_bits,
                             unsigned int plane_multiplier, int plane_bits) {
  rows_in_steps<Plan, kStaged>(GroupNormForward<T, Plan, kStores, kOne>{
      {x, weight, bias, y, mean, rstd, slabs, elements, shift, 0, inverse_elements, eps},
      groups, group_channels, pixels, {group_multiplier, group_bits},
      {plane_multiplier, plane_bits}});
}
