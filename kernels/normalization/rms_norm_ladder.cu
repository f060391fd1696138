// RMSNorm forward, step by step; the last one is rms_norm.cu's.
//
// naive      a thread per row, two loops: x is read twice
// shared     a block per row, summed in shared memory: coalesced
// vector     by 16 bytes at once
// registers  the row stays with its threads: x is read once
// The default adds rows of a warp or less, a persistent grid, and the next row's loads.
#include "ladder_rms.cuh"

template <typename T, class Team, int kWidth>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    rms_norm_step(const T* x, const T* weight, T* y, float* rstd, long long rows, int columns,
                  float eps) {
  rms_twice<Team, false, kWidth>(
      RmsRow<T>{x, nullptr, weight, nullptr, y, rstd, columns, eps}, rows);
}

template <typename T, int kWidth, int kVectors>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    rms_norm_registers(const T* x, const T* weight, T* y, float* rstd, long long rows, int columns,
                       float eps) {
  rms_once<false, kWidth, kVectors>(
      RmsRow<T>{x, nullptr, weight, nullptr, y, rstd, columns, eps});
}
