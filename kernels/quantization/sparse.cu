// 2:4 sparsity. A group of four lies in one vector, so that a thread decides by itself; of two
// magnitudes that are compared one loses, and an element that lost less than twice is kept. The
// fused kernel is the one that compresses: what is pruned already keeps its places.
#include "quantize.cuh"

// NaN are alike.
template <typename T>
__device__ unsigned int magnitude_of(T x) {
  return min(bits_of(to_float(x)) & kMagnitude, kInfinity + 1);
}

// Which of the four elements from `first` on are kept: a bit each, two of them set.
template <typename T, int kWidth>
__device__ unsigned int kept_of_four(const Vector<T, kWidth>& x, int first) {
  int lost[4] = {0, 0, 0, 0};
#pragma unroll
  for (int a = 0; a < 4; ++a) {
#pragma unroll
    for (int b = a + 1; b < 4; ++b) {
      const bool first_wins = magnitude_of(x[first + a]) >= magnitude_of(x[first + b]);
      lost[a] += !first_wins;
      lost[b] += first_wins;
    }
  }
  unsigned int kept = 0;
#pragma unroll
  for (int a = 0; a < 4; ++a) kept |= static_cast<unsigned int>(lost[a] < 2) << a;
  return kept;
}

template <int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void prune(T* y, long long n, const T* x) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const int stride = blockDim.x * kWidth, tile = stride * kLoads, first = threadIdx.x * kWidth;
  const long long start = first_of_tile(tile);
  const int length = n - start < tile ? static_cast<int>(n - start) : tile;
  const bool vectors = aligned<kBytes>(x) && aligned<kBytes>(y);
  auto run = load_run<kWidth, kLoads, false>(x + start, first, stride, length, vectors);
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    auto& vector = run.at[k];
#pragma unroll
    for (int group = 0; group < kWidth; group += 4) {
      const unsigned int kept = kept_of_four(vector, group);
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        if (!(kept >> a & 1)) vector[group + a] = from_float<T>(0.0f);
      }
    }
    store_run<kStores, false>(y + start, first + k * stride, length, vectors, vector);
  }
}

template <int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void compress(T* values, unsigned char* places, long long n, const T* x) {
  constexpr int kWidth = elements_in<T, kBytes>();
  static_assert(kWidth % 8 == 0, "a vector has whole bytes of places");
  const int stride = blockDim.x * kWidth, tile = stride * kLoads, first = threadIdx.x * kWidth;
  const long long start = first_of_tile(tile);
  const int length = n - start < tile ? static_cast<int>(n - start) : tile;
  const bool vectors =
      aligned<kBytes>(x) && aligned<kBytes / 2>(values) && aligned<kWidth / 8>(places);
  const auto run = load_run<kWidth, kLoads, false>(x + start, first, stride, length, vectors);
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const auto& vector = run.at[k];
    Vector<T, kWidth / 2> packed;
    Vector<unsigned char, kWidth / 8> bytes{};
#pragma unroll
    for (int group = 0; group < kWidth; group += 4) {
      const unsigned int kept = kept_of_four(vector, group);
      const int low = kept & 1 ? 0 : kept & 2 ? 1 : 2;
      const int high = kept & 8 ? 3 : kept & 4 ? 2 : 1;
      packed[group / 2] = kept & 1   ? vector[group]
                          : kept & 2 ? vector[group + 1]
                                     : vector[group + 2];
      packed[group / 2 + 1] = kept & 8   ? vector[group + 3]
                              : kept & 4 ? vector[group + 2]
                                         : vector[group + 1];
      bytes[group / 8] |= (low | high << 2) << group % 8;
    }
    const int i = first + k * stride;
    store_run<kStores, false>(values + start / 2, i / 2, length / 2, vectors, packed);
    store_run<kStores, false>(places + start / 8, i / 8, length / 8, vectors, bytes);
  }
}
