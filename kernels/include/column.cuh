// Sums over rows, column by column, in two stages and in float32.
//
// Atomics would add in the order in which blocks happen to run, and give other bits every time. So:
//
// 1. A persistent grid: a block adds its rows in registers and writes one row of partial sums.
// 2. column_sums adds those rows in a fixed order. It reads blocks x columns floats, which are in
//    the cache: 132 blocks of 4096 columns are 2 MB.
#pragma once

#include "memory.cuh"
#include "shared.cuh"

// Where a block keeps the sums of its columns.
//
// Rows that are cut alike: a thread has the same columns in every row, so sums stay in registers.
// Ragged rows: a thread's columns move with the row. Sums are in shared memory, each group of
// threads its own, ordered by column % kWidth first: the lanes of a warp, kWidth columns apart,
// then meet consecutive banks. Rows must be kept apart by a barrier, which a row's reduction is.
template <class Plan, int kWidth>
class ColumnSums {
  static constexpr bool kShared = Plan::kRagged;
  static constexpr int kPitch = Plan::kLanes * Plan::kVectors;
  static constexpr int kGroupFloats = kPitch * kWidth;
  static constexpr int kStored = kWidth < 8 ? kWidth : 8;  // floats: up to a sector

 public:
  // Bytes of dynamic shared memory.
  static constexpr int kBytes =
      kShared || Plan::kGroups > 1 ? Plan::kGroups * kGroupFloats * static_cast<int>(sizeof(float))
                                   : 0;

  __device__ explicit ColumnSums(float* shared) : shared_(shared) {
    if constexpr (kShared) {
      for (int i = threadIdx.x; i < Plan::kGroups * kGroupFloats; i += Plan::kThreads) {
        shared_[i] = 0.0f;
      }
      __syncthreads();
    } else {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) kept_[k][i] = 0.0f;
      }
    }
  }

  // `column` may lie outside of the row, where a vector is partial.
  __device__ void add(int k, int i, int column, int columns, float value) {
    if constexpr (kShared) {
      if (static_cast<unsigned int>(column) < static_cast<unsigned int>(columns)) {
        shared_[place(threadIdx.x / Plan::kLanes, column)] += value;
      }
    } else {
      kept_[k][i] += value;
    }
  }

  // Shuffles order no memory: lanes of one warp still need to be told.
  __device__ void end_of_row() const {
    if constexpr (kShared && Plan::kLanes <= 32) __syncwarp();
  }

  // Writes `columns` sums, groups of the block added in order.
  __device__ void write(float* out, int columns) {
    if constexpr (!kShared && Plan::kGroups == 1) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int column = (k * Plan::kLanes + threadIdx.x) * kWidth;
#pragma unroll
        for (int i = 0; i < kWidth; i += kStored) {
          if (column + i >= columns) continue;
          Vector<float, kStored> sums;
#pragma unroll
          for (int j = 0; j < kStored; ++j) sums[j] = kept_[k][i + j];
          store<Reuse::kSoon>(out + column + i, sums);
        }
      }
    } else {
      if constexpr (!kShared) {
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int column = (k * Plan::kLanes + threadIdx.x % Plan::kLanes) * kWidth;
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            shared_[place(threadIdx.x / Plan::kLanes, column + i)] = kept_[k][i];
          }
        }
      }
      __syncthreads();
      for (int column = threadIdx.x; column < columns; column += Plan::kThreads) {
        float sum = 0.0f;
#pragma unroll 4
        for (int group = 0; group < Plan::kGroups; ++group) sum += shared_[place(group, column)];
        store<Reuse::kSoon>(out + column, Vector<float, 1>{{sum}});
      }
    }
  }

 private:
  static __device__ int place(int group, int column) {
    const unsigned int c = column;
    return group * kGroupFloats + c % kWidth * kPitch + c / kWidth;
  }

  float* shared_;
  float kept_[kShared ? 1 : Plan::kVectors][kWidth];
};

// sums[c] = partials[0][c] + partials[1][c] + … in an order that depends on the shape alone. A
// block owns kColumns columns (one line of 128 bytes); its rows of threads take every kRows-th
// partial.
template <typename T, int kColumns, int kRows>
__global__ void column_sums(T* sums, const float* partials, int rows, int columns) {
  SHARED_ARRAY(float, shared, kColumns * kRows);
  const int column = blockIdx.x * kColumns + threadIdx.x % kColumns;
  const int first = threadIdx.x / kColumns;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 4
    for (int row = first; row < rows; row += kRows) {
      sum += load<Reuse::kNever, 1>(partials + static_cast<long long>(row) * columns + column)[0];
    }
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (first == 0 && column < columns) {
    float total = 0.0f;
#pragma unroll
    for (int row = 0; row < kRows; ++row) total += shared[row * kColumns + threadIdx.x];
    store<Reuse::kSoon>(sums + column, Vector<T, 1>{{from_float<T>(total)}});
  }
}
