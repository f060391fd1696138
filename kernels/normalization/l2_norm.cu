// Rows divided by their length. The arithmetic is in include/row_l2.cuh, the walk over rows in
// include/row_map.cuh, how rows are cut into vectors in include/row.cuh, which plan a shape gets in
// backends/cuda_row_map.py.
//
// 1. A thread per row, two loops: every lane of a warp reads another row, twice.
// 2. A block per row, vectors of 16 bytes: coalesced; x is read twice.
// 3. The row (backward: dy and x) stays in registers, packed, until its sum is known: one read.
// 4. A persistent grid, the next row's loads (backward: its norm too) before this row's sum.
// 5. Rows too long for registers wait in shared memory, longer ones in that of a cluster (sm_90 and
//    later); still longer ones are read twice.
#include "row_l2.cuh"

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    l2_norm_forward(const T* x, T* y, float* norm, long long rows, int columns, int shift,
                    float eps) {
  rows_in_registers<Plan>(
      L2Forward<T, Plan, kStores>{{x, rows, columns, shift}, y, norm, eps});
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    l2_norm_forward_steps(const T* x, T* y, float* norm, long long rows, int columns, int shift,
                          float eps) {
  rows_in_steps<Plan, kStaged>(
      L2Forward<T, Plan, kStores>{{x, rows, columns, shift}, y, norm, eps});
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    l2_norm_backward(const T* dy, const T* x, const float* norm, T* dx, long long rows, int columns,
                     int shift, float eps) {
  rows_in_registers<Plan>(L2Backward<T, Plan, kStores>{dy, x, norm, dx, rows, columns, shift, eps});
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    l2_norm_backward_steps(const T* dy, const T* x, const float* norm, T* dx, long long rows,
                           int columns, int shift, float eps) {
  rows_in_steps<Plan, kStaged>(
      L2Backward<T, Plan, kStores>{dy, x, norm, dx, rows, columns, shift, eps});
}
