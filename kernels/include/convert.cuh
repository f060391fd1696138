// Codes of 8 and 4 bits: float32 to codes and back.
//
// To nearest even; what is beyond the largest code becomes it, infinity too; NaN stays NaN, is 6 in
// e2m1 and 0 in int8. Where the architecture converts (8-bit floats from sm_89 on), two elements take
// an instruction; elsewhere, and in the emulator, integer arithmetic gives the same bits. (The
// toolkit's own header does that in float64.) Half-byte floats are converted by instructions that
// only code for one architecture alone may hold ("sm_121a"); ours is built without.
#pragma once

#include "memory.cuh"

__device__ inline unsigned int bits_of(float x) {
  return static_cast<unsigned int>(__float_as_int(x));
}
__device__ inline float float_of(unsigned int bits) { return __int_as_float(static_cast<int>(bits)); }

// The half in the lower two bytes.
__device__ inline float half_of(unsigned int bits) {
  const unsigned short half = static_cast<unsigned short>(bits);
  return __half2float(reinterpret_cast<const __half&>(half));
}

constexpr unsigned int kMagnitude = 0x7fffffffu;
constexpr unsigned int kInfinity = 0x7f800000u;

// Magnitude bits of a small float: kMantissa bits behind the point, exponents biased by kBias.
// Below the smallest normal number the sum with a large one rounds where the last bit is.
template <int kMantissa, int kBias>
__device__ inline unsigned int round_magnitude(unsigned int magnitude) {
  constexpr int kDropped = 23 - kMantissa;
  constexpr unsigned int kSmallestNormal = static_cast<unsigned int>(128 - kBias) << 23;
  constexpr unsigned int kShifter = static_cast<unsigned int>(128 - kBias + kDropped) << 23;
  const unsigned int even = magnitude >> kDropped & 1;
  const unsigned int half = (1u << (kDropped - 1)) - 1 + even;
  const unsigned int normal = ((magnitude + half) >> kDropped) - ((127 - kBias) << kMantissa);
  const unsigned int small = bits_of(float_of(magnitude) + float_of(kShifter)) - kShifter;
  return magnitude < kSmallestNormal ? small : normal;
}

// A format. kBits of a code, kLargest it can hold; kPlaces and kFraction: exponent of kLargest and
// the bits behind its point, as float32 has them. encode: two codes side by side, the first lowest.
template <int kMantissa, int kBias, unsigned int kLargestBits, unsigned int kNan, int kWidth>
struct SmallFloat {
  static constexpr int kBits = kWidth;
  static constexpr int kPlaces = static_cast<int>(kLargestBits >> 23) - 127;
  static constexpr unsigned int kFraction = kLargestBits & 0x7fffffu;

  static __device__ unsigned int encode_one(float x) {
    const unsigned int magnitude = bits_of(x) & kMagnitude;
    const unsigned int sign = bits_of(x) >> 31 << (kBits - 1);
    if (magnitude > kInfinity) return kNan;
    const unsigned int held = magnitude < kLargestBits ? magnitude : kLargestBits;
    return sign | round_magnitude<kMantissa, kBias>(held);
  }
  static __device__ unsigned int encode_in_software(float first, float second) {
    return encode_one(first) | encode_one(second) << kBits;
  }
};

#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 890
#define MEMBOUND_CONVERTS_FLOAT8 1
#endif

struct E4m3 : SmallFloat<3, 7, 0x43e00000u, 0x7fu, 8> {
  static __device__ unsigned int encode(float first, float second) {
#ifdef MEMBOUND_CONVERTS_FLOAT8
    unsigned short codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
#else
    return encode_in_software(first, second);
#endif
  }
  static __device__ float decode(unsigned int code) {
#ifdef MEMBOUND_CONVERTS_FLOAT8
    unsigned int halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(code)));
    return half_of(halves);
#else
    // The same bits as a half are 2^-8 of the number.
    const float value = half_of((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256.0f;
    return (code & 0x7fu) == 0x7fu ? float_of(0x7fc00000u) : value;
#endif
  }
};

struct E5m2 : SmallFloat<2, 15, 0x47600000u, 0x7fu, 8> {
  static __device__ unsigned int encode(float first, float second) {
#ifdef MEMBOUND_CONVERTS_FLOAT8
    unsigned short codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    return codes;
#else
    return encode_in_software(first, second);
#endif
  }
  // The upper byte of a half.
  static __device__ float decode(unsigned int code) {
    return half_of(code << 8);
  }
};

struct E2m1 : SmallFloat<1, 1, 0x40c00000u, 0x7u, 4> {
  static __device__ unsigned int encode(float first, float second) {
    return encode_in_software(first, second);
  }
  // The same bits as a half are 2^-14 of the number.
  static __device__ float decode(unsigned int code) {
    return half_of((code & 0x8u) << 12 | (code & 0x7u) << 9) * 16384.0f;
  }
};

struct Int8 {
  static constexpr int kBits = 8;

  static __device__ unsigned int encode_one(float x) {
    if ((bits_of(x) & kMagnitude) > kInfinity) return 0;
    const float held = fminf(fmaxf(x, -128.0f), 127.0f);
    return static_cast<unsigned int>(__float2int_rn(held)) & 0xffu;
  }
  static __device__ unsigned int encode(float first, float second) {
    return encode_one(first) | encode_one(second) << 8;
  }
  static __device__ float decode(unsigned int code) {
    return static_cast<float>(static_cast<signed char>(code));
  }
};

// Bytes of kWidth codes.
template <class Format, int kWidth>
__device__ constexpr int bytes_of_codes() {
  return kWidth * Format::kBits / 8;
}

template <class Format, int kWidth>
__device__ Vector<unsigned char, bytes_of_codes<Format, kWidth>()> encode(
    const float (&values)[kWidth]) {
  Vector<unsigned char, bytes_of_codes<Format, kWidth>()> codes;
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const unsigned int pair = Format::encode(values[i], i + 1 < kWidth ? values[i + 1] : 0.0f);
    codes[i * Format::kBits / 8] = pair & 0xffu;
    if constexpr (Format::kBits == 8) {
      if (i + 1 < kWidth) codes[i + 1] = pair >> 8;
    }
  }
  return codes;
}

template <class Format, int kWidth>
__device__ void decode(const Vector<unsigned char, bytes_of_codes<Format, kWidth>()>& codes,
                       float (&values)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const unsigned int byte = codes[i * Format::kBits / 8];
    const unsigned int code = Format::kBits == 8 || i % 2 == 0 ? byte : byte >> 4;
    values[i] = Format::decode(code);
  }
}
