// 2:4 sparsity. A group of four lies in one vector, so that a thread decides by itself: magnitudes
// as bits, with their places in the lowest two, sort in eight minima and maxima. The fused kernel is
// the one that compresses: what is pruned already keeps its places.
#include "quantize.cuh"

// Places of the two that are kept of a group, in order.
struct Kept {
  unsigned int low, high;
};

// A float32 of 16 bits has zeros where places go; the first place is the largest of equals.
template <typename T, int kWidth>
__device__ Kept kept_of_four(const Vector<T, kWidth>& x, int first) {
  unsigned int key[4];
#pragma unroll
  for (unsigned int i = 0; i < 4; ++i) {
    key[i] = (bits_of(to_float(x[first + i])) & kMagnitude) | (3 - i);
  }
  const unsigned int winner = max(key[0], key[1]), other = max(key[2], key[3]);
  const unsigned int losers = max(min(key[0], key[1]), min(key[2], key[3]));
  const unsigned int largest = max(winner, other) & 3;
  const unsigned int second = max(min(winner, other), losers) & 3;
  return {3 - max(largest, second), 3 - min(largest, second)};
}

template <int kWidth, int kLoads, Reuse kStores, bool kWhole, typename T>
__device__ void prune_run(T* y, const T* x, int length, bool vectors) {
  const int stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  auto run = load_run<kWidth, kLoads, kWhole>(x, first, stride, length, vectors);
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    auto& vector = run.at[k];
#pragma unroll
    for (int group = 0; group < kWidth; group += 4) {
      const Kept kept = kept_of_four(vector, group);
#pragma unroll
      for (unsigned int i = 0; i < 4; ++i) {
        if (kept.low != i && kept.high != i) vector[group + i] = from_float<T>(0.0f);
      }
    }
    store_run<kStores, kWhole>(y, first + k * stride, length, vectors, vector);
  }
}

template <int kWidth, int kLoads, Reuse kStores, bool kWhole, typename T>
__device__ void compress_run(T* values, unsigned char* places, const T* x, int length,
                             bool vectors) {
  static_assert(kWidth % 8 == 0, "a vector has whole bytes of places");
  const int stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  const auto run = load_run<kWidth, kLoads, kWhole>(x, first, stride, length, vectors);
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const auto& vector = run.at[k];
    Vector<T, kWidth / 2> packed;
    Vector<unsigned char, kWidth / 8> bytes{};
#pragma unroll
    for (int group = 0; group < kWidth; group += 4) {
      const T* const four = &vector[group];
      const Kept kept = kept_of_four(vector, group);
      packed[group / 2] = kept.low == 0 ? four[0] : kept.low == 1 ? four[1] : four[2];
      packed[group / 2 + 1] = kept.high == 3 ? four[3] : kept.high == 2 ? four[2] : four[1];
      bytes[group / 8] |= (kept.low | kept.high << 2) << group % 8;
    }
    const int i = first + k * stride;
    store_run<kStores, kWhole>(values, i / 2, length / 2, vectors, packed);
    store_run<kStores, kWhole>(places, i / 8, length / 8, vectors, bytes);
  }
}

template <int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void prune(T* y, long long n, const T* x) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const bool vectors = aligned<kBytes>(x) && aligned<kBytes>(y);
  const Tile own(n, blockDim.x * kWidth * kLoads, vectors);
  if (own.whole) {
    prune_run<kWidth, kLoads, kStores, true>(y + own.start, x + own.start, own.length, vectors);
  } else {
    prune_run<kWidth, kLoads, kStores, false>(y + own.start, x + own.start, own.length, vectors);
  }
}

template <int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void compress(T* values, unsigned char* places, long long n, const T* x) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const bool vectors =
      aligned<kBytes>(x) && aligned<kBytes / 2>(values) && aligned<kWidth / 8>(places);
  const Tile own(n, blockDim.x * kWidth * kLoads, vectors);
  if (own.whole) {
    compress_run<kWidth, kLoads, kStores, true>(values + own.start / 2, places + own.start / 8,
                                                x + own.start, own.length, vectors);
  } else {
    compress_run<kWidth, kLoads, kStores, false>(values + own.start / 2, places + own.start / 8,
                                                 x + own.start, own.length, vectors);
  }
}
