// Residual add and RMSNorm forward, step by step; the last one is add_rms_norm.cu's.
//
// naive      a thread per row, two loops: the sum is written, then read again
// shared     a block per row, summed in shared memory: coalesced
// vector     by 16 bytes at once
// registers  the sum stays with its threads: nothing is read again
// The default adds rows of a warp or less, a persistent grid, and the next row's loads.
#include "ladder_rms.cuh"

template <typename T, class Team, int kWidth>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    add_rms_norm_step(const T* x, const T* residual, const T* weight, T* h, T* y, float* rstd,
                      long long rows, int columns, float eps) {
  rms_twice<Team, true, kWidth>(RmsRow<T>{x, residual, weight, h, y, rstd, columns, eps}, rows);
}

template <typename T, int kWidth, int kVectors>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    add_rms_norm_registers(const T* x, const T* residual, const T* weight, T* h, T* y, float* rstd,
                           long long rows, int columns, float eps) {
  rms_once<true, kWidth, kVectors>(RmsRow<T>{x, residual, weight, h, y, rstd, columns, eps});
}
