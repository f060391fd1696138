// RMSNorm of rows. The schedule of each version is in include/row_rms.cuh, how rows are cut into
// vectors in include/row.cuh, which plan a shape gets in backends/cuda_rms.py.
//
// Forward
// 1. A thread per row, two loops: right, and every lane of a warp reads another row.
// 2. A block per row, strided by its threads, vectors of 16 bytes: coalesced; x is read twice.
// 3. The row stays in registers, still packed, between its statistic and its output: x once. One
//    barrier per row; up to 2048 bytes a row belongs to one warp or less and needs none.
// 4. A persistent grid: from a block's second row on, the weight is in L1.
// 5. The next row's loads are issued before this row's reduction, so that no block ever waits with
//    nothing on its way; loads skip L1, stores stream past the cache.
// 6. Rows that do not begin on 16 bytes are cut where memory is aligned: only their ends go by
//    elements. Rows too long for registers wait in shared memory, longer ones in that of a cluster
//    (sm_90 and later); still longer ones are read twice.
//
// Backward
// 1. dx by rows, then dweight by columns in a second kernel: dy and x are read twice.
// 2. One pass: a block keeps float32 sums of its columns while it walks its rows. Atomics at the
//    end would make the bits depend on the order of blocks.
// 3. Blocks leave partial sums; column_sums adds them in a fixed order.
// 4. dx = (dy * weight - x * dot) * rstd needs one reduction per row, since rstd came from forward;
//    dweight is added up before it, and rstd is asked for a row early.
// 5. Rows too long for registers: a first kernel leaves each row's dot, a second one owns tiles of
//    columns.
#include "row_rms.cuh"
#include "row_rms_cluster.cuh"

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    rms_norm_forward(const T* x, const T* weight, T* y, float* rstd, long long rows, int columns,
                     int shift, int weight_shift, float inverse_columns, float eps) {
  RmsForward<T>{x, nullptr, weight, nullptr, y, rstd, rows, columns, shift, weight_shift,
                inverse_columns, eps}
      .template in_registers<Plan, false, kStores>();
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    rms_norm_forward_steps(const T* x, const T* weight, T* y, float* rstd, long long rows,
                           int columns, int shift, int weight_shift, float inverse_columns,
                           float eps) {
  rms_of_long_rows<Plan, false, kStaged, kStores>(
      RmsForward<T>{x, nullptr, weight, nullptr, y, rstd, rows, columns, shift, weight_shift,
                    inverse_columns, eps});
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    rms_norm_backward(const T* dy, const T* x, const T* weight, const float* rstd, T* dx,
                      float* partials, long long rows, int columns, int shift, int weight_shift,
                      float inverse_columns) {
  RmsBackward<T>{dy, nullptr, x, weight, rstd, dx, partials, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template in_registers<Plan, false, kStores>();
}

template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    rms_norm_projections(const T* dy, const T* x, const T* weight, const float* rstd,
                         float* projected, long long rows, int columns, int shift, int weight_shift,
                         float inverse_columns) {
  RmsBackward<T>{dy, nullptr, x, weight, rstd, nullptr, nullptr, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template projections<Plan>(projected);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    rms_norm_backward_tiles(const T* dy, const T* x, const T* weight, const float* rstd,
                            const float* projected, T* dx, float* partials, long long rows,
                            int columns, int shift, int weight_shift, float inverse_columns) {
  RmsBackward<T>{dy, nullptr, x, weight, rstd, dx, partials, rows, columns, shift, weight_shift,
                 inverse_columns}
      .template in_tiles<Plan, false, kStores>(projected);
}
