// The largest magnitude of a tensor.
//
// 1. One block: no more than its bytes in flight.
// 2. Atomics on one address need it to be zero before.
// 3. A persistent grid leaves one number a block, and one block joins them. Magnitudes are compared
//    as bits, so that NaN is the largest.
#include "quantize.cuh"
#include "reduce.cuh"

template <int kWidth, int kLoads, bool kWhole, typename T>
__device__ unsigned int largest_of_tile(const T* x, int length, bool vectors,
                                        unsigned int largest) {
  const auto run = load_run<kWidth, kLoads, kWhole>(x, threadIdx.x * kWidth, blockDim.x * kWidth,
                                                    length, vectors);
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) largest = larger_magnitude(largest, to_float(run.at[k][e]));
  }
  return largest;
}

template <int kBytes, int kLoads, int kThreads, typename T>
__global__ void __launch_bounds__(kThreads)
    amax_of_blocks(float* partials, long long n, const T* x) {
  constexpr int kWidth = elements_in<T, kBytes>(), kTile = kThreads * kWidth * kLoads;
  const bool vectors = aligned<kBytes>(x);
  unsigned int largest = 0;
  for (long long start = first_of_tile(kTile); start < n;
       start += static_cast<long long>(gridDim.x) * kTile) {
    const Tile own(start, n, kTile, vectors);
    largest = own.whole
                  ? largest_of_tile<kWidth, kLoads, true>(x + start, kTile, vectors, largest)
                  : largest_of_tile<kWidth, kLoads, false>(x + start, own.length, vectors, largest);
  }
  const float joined = reduce_threads<Maximum, kThreads>(float_of(largest));
  if (threadIdx.x == 0) store<Reuse::kSoon>(partials + blockIdx.x, Vector<float, 1>{{joined}});
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    amax_of_partials(float* amax, const float* partials, int blocks) {
  float largest = 0.0f;
  for (int i = threadIdx.x; i < blocks; i += kThreads) {
    largest = Maximum::apply(largest, load<Reuse::kSoon, 1>(partials + i)[0]);
  }
  const float joined = reduce_threads<Maximum, kThreads>(largest);
  if (threadIdx.x == 0) store<Reuse::kSoon>(amax, Vector<float, 1>{{joined}});
}
