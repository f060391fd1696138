// Numbers from codes: one pass, in which y is most of the traffic.
//
// 1. A thread per element: y by two bytes, and its scale again and again.
// 2. A thread makes whole accesses of y, from half or a quarter of one of codes; codes and scales of
//    all its vectors are asked for before the first is used.
// 3. A row's scale: which row a vector is in takes one division of 64 bits a block, and one of 32 a
//    vector. Where vectors do not fill the rows (kEven false), every element is asked.
#include "quantize.cuh"

struct OneScale {
  float scale;

  __device__ float fetch(int) const { return scale; }
  template <int kWidth>
  __device__ void apply(float (&values)[kWidth], float fetched, int, int) const {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] *= fetched;
  }
};

template <bool kEven>
struct ScalesOfRows {
  const float* scales;  // from the row on where the tile begins
  unsigned int columns, begin;

  static __device__ ScalesOfRows of(const float* scales, long long columns, long long start) {
    const long long row = start / columns;
    return {scales + row, static_cast<unsigned int>(columns),
            static_cast<unsigned int>(start - row * columns)};
  }
  __device__ float fetch(int i) const {
    return load<Reuse::kSoon, 1>(scales + (begin + i) / columns)[0];
  }
  template <int kWidth>
  __device__ void apply(float (&values)[kWidth], float fetched, int i, int length) const {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (!kEven && e > 0 && i + e < length) fetched = fetch(i + e);
      values[e] *= fetched;
    }
  }
};

// kBlock elements to a scale; Decoding makes a number of its byte.
template <int kBlock, class Decoding>
struct ScalesOfBlocks {
  const unsigned char* scales;  // from the tile on
  float given;

  __device__ float fetch(int i) const {
    return Decoding::decode(load<Reuse::kSoon, 1>(scales + i / kBlock)[0]) * given;
  }
  template <int kWidth>
  __device__ void apply(float (&values)[kWidth], float fetched, int, int) const {
    static_assert(kBlock % kWidth == 0, "a vector lies in one block");
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] *= fetched;
  }
};

template <class Format, int kWidth, int kLoads, Reuse kStores, bool kWhole, typename T,
          class Scales>
__device__ void decode_run(T* y, const unsigned char* q, const Scales& scales, int length,
                           bool vectors) {
  constexpr int kCodes = bytes_of_codes<Format, kWidth>();
  const int stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  const auto codes = load_run<kCodes, kLoads, kWhole>(q, threadIdx.x * kCodes, blockDim.x * kCodes,
                                                      length * Format::kBits / 8, vectors);
  float fetched[kLoads];
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = first + k * stride;
    fetched[k] = kWhole || i < length ? scales.fetch(i) * Format::kUnit : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    float values[kWidth];
    decode<Format>(codes.at[k], values);
    scales.apply(values, fetched[k], first + k * stride, length);
    store_run<kStores, kWhole>(y, first + k * stride, length, vectors, from_floats<T>(values));
  }
}

template <class Format, int kBytes, int kLoads, Reuse kStores, typename T, class ScalesOf>
__device__ void decode_tile(T* y, const unsigned char* q, long long n, const ScalesOf& scales_of) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const int tile = blockDim.x * kWidth * kLoads;
  const bool vectors = aligned<kBytes>(y) && aligned<bytes_of_codes<Format, kWidth>()>(q);
  const Tile own(n, tile, vectors);
  const auto scales = scales_of(own.start);
  const unsigned char* const codes = q + own.start * Format::kBits / 8;
  if (own.whole) {
    decode_run<Format, kWidth, kLoads, kStores, true>(y + own.start, codes, scales, tile, true);
  } else {
    decode_run<Format, kWidth, kLoads, kStores, false>(y + own.start, codes, scales, own.length,
                                                       vectors);
  }
}

// Launched like the kernels of quantize.cuh, by the elements of y.
template <class Format, int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void dequantize_by_tensor(T* y, const unsigned char* q, const float* scale,
                                     long long n) {
  const OneScale one{load<Reuse::kSoon, 1>(scale)[0]};
  decode_tile<Format, kBytes, kLoads, kStores>(y, q, n, [&](long long) { return one; });
}

template <class Format, bool kEven, int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void dequantize_by_row(T* y, const unsigned char* q, const float* scales, long long n,
                                  long long columns) {
  decode_tile<Format, kBytes, kLoads, kStores>(
      y, q, n, [&](long long start) { return ScalesOfRows<kEven>::of(scales, columns, start); });
}

template <class Format, int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void dequantize_by_mx_block(T* y, const unsigned char* q, const unsigned char* scales,
                                       long long n) {
  decode_tile<Format, kBytes, kLoads, kStores>(y, q, n, [&](long long start) {
    return ScalesOfBlocks<32, E8m0>{scales + start / 32, 1.0f};
  });
}

template <class Format, int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void dequantize_by_nv_block(T* y, const unsigned char* q, const unsigned char* scales,
                                       const float* scale, long long n) {
  const float given = load<Reuse::kSoon, 1>(scale)[0];
  decode_tile<Format, kBytes, kLoads, kStores>(y, q, n, [&](long long start) {
    return ScalesOfBlocks<16, E4m3>{scales + start / 16, given};
  });
}
