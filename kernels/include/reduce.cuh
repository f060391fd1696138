// Sums (or maxima) over a warp and over a block. Every thread of the warp or block takes part and
// every thread gets the result; the order of the terms is fixed, so results repeat bit by bit.
#pragma once

#include "shared.cuh"

constexpr int kWarp = 32;
constexpr unsigned int kWholeWarp = 0xffffffffu;

struct Sum {
  static __device__ float identity() { return 0.0f; }
  static __device__ float apply(float a, float b) { return a + b; }
};

// NaN wins, as it must in a reduction that propagates it.
struct Maximum {
  static __device__ float identity() { return __int_as_float(0xff800000); }  // -inf
  static __device__ float apply(float a, float b) { return a > b || a != a ? a : b; }
};

// Over groups of kLanes consecutive lanes (a power of two up to 32).
template <class Reduction, int kLanes = kWarp>
__device__ float reduce_lanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Reduction::apply(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  return value;
}

// Over groups of kThreads consecutive threads; a block of kBlock threads holds kBlock / kThreads of
// them. Up to a warp no shared memory is needed. May be called repeatedly.
template <class Reduction, int kThreads, int kBlock = kThreads>
__device__ float reduce_threads(float value) {
  if constexpr (kThreads <= kWarp) {
    return reduce_lanes<Reduction, kThreads>(value);
  } else {
    constexpr int kWarps = kThreads / kWarp;
    SHARED_ARRAY(float, partial, kBlock / kWarp);
    value = reduce_lanes<Reduction>(value);
    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < kWarps ? partial[warp / kWarps * kWarps + lane] : Reduction::identity();
    value = reduce_lanes<Reduction>(value);
    __syncthreads();  // the next call writes `partial` again
    return value;
  }
}

template <int kThreads, int kBlock = kThreads>
__device__ float sum_threads(float value) {
  return reduce_threads<Sum, kThreads, kBlock>(value);
}
