// Codes and scales of one contiguous run, and back. convert.cuh has the formats, and
// quantization/quantize.py the policies.
//
// 1. Two kernels, the largest magnitudes first: x is read twice.
// 2. Blocks of 16 or 32 lie in the vectors of neighbouring lanes: they exchange their largest
//    magnitudes in registers, and x is read once.
// 3. Loads fill an access, and all of a thread's are asked for before the first is used; codes are
//    stored in half or a quarter of one, which is still whole sectors of a warp.
// 4. Magnitudes are compared as bits: one instruction, and NaN is larger than infinity.
// 5. Scales are powers of two by their exponent bits; others cost a thread one division a vector.
#pragma once

#include "convert.cuh"

// Element where a block's tile begins: 64 bits before the product.
__device__ inline long long first_of_tile(int tile) {
  return static_cast<long long>(blockIdx.x) * tile;
}

// What a block takes of a run: everything from `start` on, up to a tile.
struct Tile {
  long long start;
  int length;
  bool vectors;  // where every operand is aligned for them
  bool whole;    // and the tile is full

  __device__ Tile(long long n, int elements, bool vectors)
      : Tile(first_of_tile(elements), n, elements, vectors) {}
  __device__ Tile(long long start, long long n, int elements, bool vectors)
      : start(start),
        length(n - start < elements ? static_cast<int>(n - start) : elements),
        vectors(vectors),
        whole(vectors && n - start >= elements) {}
};

template <typename T, int kWidth, int kLoads>
struct Run {
  Vector<T, kWidth> at[kLoads];
};

// Vector k of a thread begins at first + k * stride, of `length` that are there; beyond are zeros.
// What is not aligned, or not whole, goes by elements.
template <int kWidth, int kLoads, bool kWhole, typename T>
__device__ Run<T, kWidth, kLoads> load_run(const T* x, int first, int stride, int length,
                                           bool vectors) {
  Run<T, kWidth, kLoads> run;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = first + k * stride;
    if (kWhole || (vectors && i + kWidth <= length)) {
      run.at[k] = load<Reuse::kNever, kWidth>(x + i);
    } else {
      run.at[k] = Vector<T, kWidth>{};
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (i + e < length) run.at[k][e] = load<Reuse::kNever, 1>(x + i + e)[0];
      }
    }
  }
  return run;
}

template <Reuse kStores, bool kWhole, int kWidth, typename T>
__device__ void store_run(T* y, int i, int length, bool vectors, const Vector<T, kWidth>& vector) {
  if (kWhole || (vectors && i + kWidth <= length)) {
    store<kStores>(y + i, vector);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (i + e < length) store<kStores>(y + i + e, Vector<T, 1>{{vector[e]}});
  }
}

// ---- scales: each gives the reciprocal that a vector is multiplied by ----------------------------

struct GivenScale {
  float reciprocal;

  static __device__ GivenScale of(const float* scale) {
    return {1.0f / load<Reuse::kSoon, 1>(scale)[0]};
  }
  template <Reuse kStores, int kWidth>
  __device__ float find(const float (&)[kWidth], long long, bool) const {
    return reciprocal;
  }
};

// Bits of the largest magnitude: NaN if any is.
template <int kWidth>
__device__ unsigned int largest_magnitude(const float (&values)[kWidth]) {
  unsigned int largest = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) largest = larger_magnitude(largest, values[i]);
  return largest;
}

// Bits of the largest magnitude of kBlock elements, which lie in neighbouring lanes.
template <int kBlock, int kWidth>
__device__ unsigned int largest_of_block(const float (&values)[kWidth]) {
  constexpr int kLanes = kBlock / kWidth;
  static_assert(kLanes >= 1 && kLanes <= 32, "a block lies in one warp");
  unsigned int largest = largest_magnitude(values);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  return largest;
}

// Powers of two, as their exponents: 2^(code - 127), and 255 for NaN.
template <class Format, bool kUp>
struct MxScales {
  static constexpr int kBlock = 32;
  unsigned char* scales;

  template <Reuse kStores, int kWidth>
  __device__ float find(const float (&values)[kWidth], long long element, bool inside) const {
    const unsigned int found = largest_of_block<kBlock>(values);
    const unsigned int largest = min(found, kInfinity - 1);
    int code = static_cast<int>(largest >> 23) - Format::kPlaces;
    if (kUp) code += (largest & 0x7fffffu) > Format::kFraction;
    code = max(code, 0);
    const bool is_nan = found > kInfinity;
    if (inside && element % kBlock == 0) {
      const unsigned char stored = is_nan ? 255 : static_cast<unsigned char>(code);
      store<kStores>(scales + element / kBlock, Vector<unsigned char, 1>{{stored}});
    }
    return float_of(is_nan ? kInfinity + 1 : static_cast<unsigned int>(254 - code) << 23);
  }
};

// e4m3, times a given float32.
struct NvScales {
  static constexpr int kBlock = 16;
  unsigned char* scales;
  float given, reciprocal;

  static __device__ NvScales of(unsigned char* scales, const float* scale) {
    const float given = load<Reuse::kSoon, 1>(scale)[0];
    return {scales, given, 1.0f / given};
  }
  template <Reuse kStores, int kWidth>
  __device__ float find(const float (&values)[kWidth], long long element, bool inside) const {
    const float largest = float_of(largest_of_block<kBlock>(values));
    const unsigned int code = E4m3::encode(largest * (1.0f / 6.0f) * reciprocal, 0.0f) & 0xffu;
    if (inside && element % kBlock == 0) {
      const unsigned char stored = static_cast<unsigned char>(code);
      store<kStores>(scales + element / kBlock, Vector<unsigned char, 1>{{stored}});
    }
    return code == 0 ? 0.0f : 1.0f / (E4m3::decode(code) * given);
  }
};

// ---- codes of f(inputs) --------------------------------------------------------------------------

struct AsIs {
  static __device__ float apply(float x) { return x; }
};

template <class Format, class Arithmetic, int kWidth, int kLoads, Reuse kStores, bool kWhole,
          class Scales, typename... Runs>
__device__ void encode_run(unsigned char* q, const Scales& scales, long long start, int first,
                           int stride, int length, bool vectors, const Runs&... in) {
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = first + k * stride;
    float values[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] = Arithmetic::apply(to_float(in.at[k][e])...);
    const float r = scales.template find<kStores>(values, start + i, kWhole || i < length);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] *= r;
    store_run<kStores, kWhole>(q + start * Format::kBits / 8, i * Format::kBits / 8,
                               length * Format::kBits / 8, vectors, encode<Format>(values));
  }
}

template <class Format, class Arithmetic, int kBytes, int kLoads, Reuse kStores, class Scales,
          typename T, typename... Others>
__device__ void encode_tile(unsigned char* q, const Scales& scales, long long n, const T* x,
                            const Others*... others) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const int stride = blockDim.x * kWidth, tile = stride * kLoads, first = threadIdx.x * kWidth;
  const bool vectors = aligned<bytes_of_codes<Format, kWidth>()>(q) && aligned<kBytes>(x) &&
                       (... && aligned<kBytes>(others));
  const Tile own(n, tile, vectors);
  if (own.whole) {
    encode_run<Format, Arithmetic, kWidth, kLoads, kStores, true>(
        q, scales, own.start, first, stride, tile, vectors,
        load_run<kWidth, kLoads, true>(x + own.start, first, stride, tile, vectors),
        load_run<kWidth, kLoads, true>(others + own.start, first, stride, tile, vectors)...);
  } else {
    encode_run<Format, Arithmetic, kWidth, kLoads, kStores, false>(
        q, scales, own.start, first, stride, own.length, vectors,
        load_run<kWidth, kLoads, false>(x + own.start, first, stride, own.length, vectors),
        load_run<kWidth, kLoads, false>(others + own.start, first, stride, own.length, vectors)...);
  }
}

// Launched with ceil(n / tile) blocks, tile = blockDim.x * kLoads * elements of kBytes; n is a
// multiple of the block where there are blocks.
template <class Format, class Arithmetic, int kBytes, int kLoads, Reuse kStores, typename... Inputs>
__global__ void quantize_by_tensor(unsigned char* q, const float* scale, long long n,
                                   const Inputs*... inputs) {
  encode_tile<Format, Arithmetic, kBytes, kLoads, kStores>(q, GivenScale::of(scale), n, inputs...);
}

template <class Format, bool kUp, int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void quantize_by_mx_block(unsigned char* q, unsigned char* scales, long long n,
                                     const T* x) {
  encode_tile<Format, AsIs, kBytes, kLoads, kStores>(q, MxScales<Format, kUp>{scales}, n, x);
}

template <class Arithmetic, int kBytes, int kLoads, Reuse kStores, typename... Inputs>
__global__ void quantize_by_nv_block(unsigned char* q, unsigned char* scales, const float* scale,
                                     long long n, const Inputs*... inputs) {
  encode_tile<E2m1, Arithmetic, kBytes, kLoads, kStores>(q, NvScales::of(scales, scale), n,
                                                         inputs...);
}
