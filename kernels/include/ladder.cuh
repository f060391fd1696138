// What the early steps of kernel ladders are made of: who works on a row, and how it is summed.
//
//   naive    a thread per row: right, and the lanes of a warp read as many rows
//   shared   a block per row: its lanes read neighbours, and add up in shared memory
//   vector   the same by vectors of 16 bytes; by elements where a row does not begin on them
//
// These walk over a row as often as the formula mentions it. A step that keeps the row comes later,
// and each operation's default kernel is its last.
#pragma once

#include "memory.cuh"
#include "reduce.cuh"

constexpr int kLadderThreads = 256;
constexpr int kLadderBlocks = 4;  // resident at least: 64 registers a thread

// Who works on a row. Elements first, first + stride, … (times the width of an access) are one
// thread's; `all` reduces over those who share the row, and each of them gets the result.
struct OneThread {
  static constexpr int kStride = 1;
  static __device__ long long row() {
    return static_cast<long long>(blockIdx.x) * kLadderThreads + threadIdx.x;
  }
  static __device__ int first() { return 0; }
  template <class Reduction>
  static __device__ float all(float value) {
    return value;
  }
};

struct OneBlock {
  static constexpr int kStride = kLadderThreads;
  static __device__ long long row() { return blockIdx.x; }
  static __device__ int first() { return threadIdx.x; }
  // A tree in shared memory: half of the threads each time, a barrier each time.
  template <class Reduction>
  static __device__ float all(float value) {
    SHARED_ARRAY(float, slots, kLadderThreads);
    slots[threadIdx.x] = value;
    for (int half = kLadderThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) {
        slots[threadIdx.x] = Reduction::apply(slots[threadIdx.x], slots[threadIdx.x + half]);
      }
    }
    __syncthreads();
    const float result = slots[0];
    __syncthreads();  // the next reduction writes the slots again
    return result;
  }
};

// Whether rows of `columns` can be read and written by vectors of kWidth at these addresses.
template <int kWidth, typename T, typename... More>
__device__ bool whole_vectors(int columns, const T* first, const More*... more) {
  return columns % kWidth == 0 &&
         (aligned<kWidth * sizeof(T)>(first) && ... && aligned<kWidth * sizeof(More)>(more));
}

// First column of the k-th vector that a thread keeps.
template <int kWidth>
__device__ int own_column(int k) {
  return (k * kLadderThreads + static_cast<int>(threadIdx.x)) * kWidth;
}
