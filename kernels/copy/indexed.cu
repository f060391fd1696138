// Reads that skip (y[i] = x[i * stride]) or jump (y[i] = x[index[i]]).
//
// Strided
// 1. A thread per element. What is fetched is given by the stride: whole sectors.
// 2. Consecutive threads take consecutive elements, so that a sector is asked for once, by one
//    warp access; a thread that made 16 bytes of y by itself would ask for its sectors again and
//    again. A thread has kLoads elements on their way.
//
// Gathered
// 1. A thread per element: an index, then an element, one latency after the other.
// 2. A thread takes vectors of 16 bytes of the index, kLoads of them at once, then asks for all
//    their elements before it stores the first: 8 or 16 sectors on their way per thread. The
//    elements of one index vector are one vector of y.
// 3. No element is fetched into L1: a sector would be gone before a neighbour is wanted.
#include "elementwise.cuh"

template <int kStride, int kLoads, Reuse kStores, typename T>
__global__ void strided_read(T* y, long long n, const T* x) {
  const long long first = tile_start(blockIdx.x, blockDim.x * kLoads) + threadIdx.x;
  Vector<T, 1> in[kLoads];
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const long long i = first + k * static_cast<int>(blockDim.x);
    if (i < n) in[k] = load<Reuse::kNever, 1>(x + i * kStride);
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const long long i = first + k * static_cast<int>(blockDim.x);
    if (i < n) store<kStores>(y + i, in[k]);
  }
}

template <int kLoads, Reuse kStores, typename T, typename Index>
__global__ void gather(T* y, long long n, const T* x, const Index* index) {
  constexpr int kWidth = elements_in<Index, 16>();
  const int stride = blockDim.x * kWidth;
  const int tile = stride * kLoads;
  const long long start = tile_start(blockIdx.x, tile);
  const int first = threadIdx.x * kWidth;
  const int length = n - start < tile ? static_cast<int>(n - start) : tile;
  int done = 0;
  if (aligned<16>(index) && aligned<kWidth * sizeof(T)>(y)) {
    const auto at =
        load_vectors<kWidth, kLoads, false>(index + start, first, stride, length);
    Vector<T, kWidth> out[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (first + k * stride + kWidth > length) continue;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) out[k][e] = load<Reuse::kNever, 1>(x + at.at[k][e])[0];
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * stride;
      if (i + kWidth <= length) store<kStores>(y + start + i, out[k]);
    }
    done = length - length % kWidth;
  }
  for (int i = done + threadIdx.x; i < length; i += blockDim.x) {
    const Index where = load<Reuse::kNever, 1>(index + start + i)[0];
    store<kStores>(y + start + i, load<Reuse::kNever, 1>(x + where));
  }
}
