// Copy, step by step: a thread moves kLoads vectors of kWidth elements.
//
// naive      one element: what is in flight is what threads there are, times 2 bytes of bfloat16
// vector     one vector of 16 bytes (32 from sm_100 on): an eighth of the instructions
// unrolled   several vectors, all asked for before the first is put down
// The default (elementwise.cuh) also keeps what is used once out of the caches.
#include "elementwise.cuh"

template <typename T, int kWidth, int kLoads>
__global__ void copy_step(T* y, const T* x, long long n) {
  const int stride = blockDim.x * kWidth;
  const int tile = stride * kLoads;
  const long long start = tile_start(blockIdx.x, tile);
  if (n - start >= tile && aligned<kWidth * sizeof(T)>(x) && aligned<kWidth * sizeof(T)>(y)) {
    const long long first = start + threadIdx.x * kWidth;
    Vector<T, kWidth> in[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) in[k] = load<Reuse::kSoon, kWidth>(x + first + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) store<Reuse::kSoon>(y + first + k * stride, in[k]);
    return;
  }
  const long long end = n - start < tile ? n : start + tile;
  for (long long i = start + threadIdx.x; i < end; i += blockDim.x) {
    store<Reuse::kSoon>(y + i, load<Reuse::kSoon, 1>(x + i));
  }
}
