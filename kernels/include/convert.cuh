// Codes of 8 and 4 bits: float32 to codes and back.
//
// To nearest even; what is beyond the largest code becomes it, infinity too; NaN stays NaN, is 6 in
// e2m1 and 0 in integers. Where the architecture converts (8-bit floats from sm_89 on, half-byte
// floats in code for one architecture or family alone, from sm_100a on), two elements take an
// instruction; elsewhere, and in the emulator, integer arithmetic gives the same bits. (The
// toolkit's own header does that in float64.)
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

// Bits of the larger of a magnitude and |x|; NaN, if either is, is larger than infinity.
__device__ inline unsigned int larger_magnitude(unsigned int bits, float x) {
#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 800
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(float_of(bits)), "f"(fabsf(x)));
  return bits_of(larger);
#else
  return max(bits, bits_of(x) & kMagnitude);
#endif
}

// |x| up to `most`, which is not NaN; NaN stays NaN.
__device__ inline float smaller_magnitude(float x, float most) {
#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 800
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(fabsf(x)), "f"(most));
  return smaller;
#else
  return fabsf(x) > most ? most : fabsf(x);
#endif
}

// A format. kBits of a code, kLargest it can hold; kPlaces and kFraction: exponent of kLargest and
// the bits behind its point, as float32 has them. encode: two codes side by side, the first lowest.
// decode_two: their numbers, in units of kUnit, which a scale is multiplied by.
template <int kMantissa, int kBias, unsigned int kLargestBits, unsigned int kNan, int kWidth>
struct SmallFloat {
  static constexpr int kBits = kWidth;
  static constexpr int kPlaces = static_cast<int>(kLargestBits >> 23) - 127;
  static constexpr unsigned int kFraction = kLargestBits & 0x7fffffu;
  static constexpr float kUnit = 1.0f;

  // In the lowest byte. Added to a number so much larger, a magnitude is rounded where its last bit
  // is; the codes of every power of two follow those of the one below, and kFirst, which is even,
  // makes the smallest 0. The sum of NaN is beyond those of all numbers.
  static __device__ unsigned int magnitude_code(float x) {
    constexpr unsigned int kDropped = 23 - kMantissa;
    constexpr unsigned int kSmallestNormal = (128u - kBias) << 23;
    constexpr unsigned int kFirst = (0u - ((128u - kBias) << kMantissa)) & 0xffu;
    const float held = smaller_magnitude(x, float_of(kLargestBits));
    const unsigned int power = max(bits_of(held) & kInfinity, kSmallestNormal);
    const float shifter = float_of(power + (kDropped << 23) + kFirst);
    return min((power >> kDropped) + bits_of(held + shifter), 0x7f000000u | kNan);
  }
  static __device__ unsigned int encode_in_software(float first, float second) {
    const unsigned int magnitudes = __byte_perm(magnitude_code(first), magnitude_code(second), 0x0040);
    const unsigned int signs = __byte_perm(with_sign(first), with_sign(second), 0x0073);
    return (magnitudes & 0x7f7fu) | (signs & 0x8080u);
  }
  // A GPU computes NaN without a sign.
  static __device__ unsigned int with_sign(float x) {
#ifdef MEMBOUND_EMULATOR
    if (x != x) return 0;
#endif
    return bits_of(x);
  }
};

#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 890
#define MEMBOUND_CONVERTS_FLOAT8 1
#endif
#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 1000 && defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define MEMBOUND_CONVERTS_FLOAT4 1
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
  // The same bits as a half are 2^-8 of the number.
  static __device__ float decode_in_software(unsigned int code) {
    const float value = half_of((code & 0x80u) << 8 | (code & 0x7fu) << 7) * 256.0f;
    return (code & 0x7fu) == 0x7fu ? float_of(0x7fc00000u) : value;
  }
  static __device__ void decode_two(unsigned int codes, float& first, float& second) {
#ifdef MEMBOUND_CONVERTS_FLOAT8
    unsigned int halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
    first = half_of(halves);
    second = half_of(halves >> 16);
#else
    first = decode_in_software(codes & 0xffu);
    second = decode_in_software(codes >> 8 & 0xffu);
#endif
  }
  static __device__ float decode(unsigned int code) {
    float first, second;
    decode_two(code, first, second);
    return first;
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
  // A code is the upper byte of a half.
  static __device__ void decode_two(unsigned int codes, float& first, float& second) {
#ifdef MEMBOUND_CONVERTS_FLOAT8
    unsigned int halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
    first = half_of(halves);
    second = half_of(halves >> 16);
#else
    first = half_of(codes << 8);
    second = half_of(codes & 0xff00u);
#endif
  }
};

struct E2m1 : SmallFloat<1, 1, 0x40c00000u, 0x7u, 4> {
  // Added to 2^22 times its power of two (to 2^22 below 2), a magnitude is rounded where its last
  // bit is; the codes of every power of two follow those of the one below.
  static __device__ unsigned int encode_one(float x) {
    const float magnitude = fabsf(x) < 6.0f ? fabsf(x) : 6.0f;  // NaN too
    const unsigned int power = max(bits_of(magnitude), 0x3f800000u) & kInfinity;
    const unsigned int shifter = power + (22u << 23);
    const unsigned int sum = bits_of(magnitude + float_of(shifter));
    const unsigned int sign = with_sign(x) >> 28 & 8u;
    return sum - shifter + (power >> 22) - 254u + sign;
  }
  static __device__ unsigned int encode_in_software(float first, float second) {
    return encode_one(first) | encode_one(second) << 4;
  }
  static __device__ unsigned int encode(float first, float second) {
#ifdef MEMBOUND_CONVERTS_FLOAT4
    unsigned short codes;
    asm("{\n\t.reg .b8 both;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 both, %1, %2;\n\t"
        "mov.b16 %0, {both, 0};\n\t}"
        : "=h"(codes)
        : "f"(second), "f"(first));
    return codes;
#else
    return encode_in_software(first, second);
#endif
  }
#ifdef MEMBOUND_CONVERTS_FLOAT4
  static __device__ void decode_two(unsigned int codes, float& first, float& second) {
    unsigned int halves;
    asm("{\n\t.reg .b8 both, none;\n\t"
        "mov.b16 {both, none}, %1;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, both;\n\t}"
        : "=r"(halves)
        : "h"(static_cast<unsigned short>(codes)));
    first = half_of(halves);
    second = half_of(halves >> 16);
  }
#else
  // The same bits as a half are 2^-14 of the number.
  static constexpr float kUnit = 16384.0f;
  static __device__ void decode_two(unsigned int codes, float& first, float& second) {
    first = half_of((codes & 0x8u) << 12 | (codes & 0x7u) << 9);
    second = half_of((codes & 0x80u) << 8 | (codes & 0x70u) << 5);
  }
#endif
};

struct Int8 {
  static constexpr int kBits = 8;
  static constexpr float kUnit = 1.0f;

  static __device__ unsigned int encode_one(float x) {
#ifdef MEMBOUND_EMULATOR
    if ((bits_of(x) & kMagnitude) > kInfinity) return 0;
    const float held = fminf(fmaxf(x, -128.0f), 127.0f);
    return static_cast<unsigned int>(__float2int_rn(held)) & 0xffu;
#else
    int code;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(code) : "f"(x));
    return static_cast<unsigned int>(code) & 0xffu;
#endif
  }
  static __device__ unsigned int encode(float first, float second) {
    return encode_one(first) | encode_one(second) << 8;
  }
  static __device__ void decode_two(unsigned int codes, float& first, float& second) {
    first = static_cast<float>(static_cast<signed char>(codes));
    second = static_cast<float>(static_cast<signed char>(codes >> 8));
  }
};

struct Uint8 {
  static __device__ unsigned int encode_one(float x) {
#ifdef MEMBOUND_EMULATOR
    return x > 0.0f ? static_cast<unsigned int>(__float2int_rn(fminf(x, 255.0f))) : 0u;
#else
    unsigned int code;
    asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(code) : "f"(x));
    return code;
#endif
  }
};

// Scales that are powers of two, as their exponents: 2^(code - 127), and 255 for NaN. A code is an
// exponent of float32, so none of them is made by an instruction of its own: that would round a
// quotient which had been rounded before.
struct E8m0 {
  static __device__ float decode(unsigned int code) {
#ifdef MEMBOUND_CONVERTS_FLOAT4
    unsigned int upper_halves;
    asm("cvt.rn.bf16x2.ue8m0x2 %0, %1;"
        : "=r"(upper_halves)
        : "h"(static_cast<unsigned short>(code)));
    return float_of(upper_halves << 16);
#else
    return float_of(code == 255 ? kInfinity + 1 : code == 0 ? 0x400000u : code << 23);
#endif
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

// Numbers of codes, in units of Format::kUnit.
template <class Format, int kWidth>
__device__ void decode(const Vector<unsigned char, bytes_of_codes<Format, kWidth>()>& codes,
                       float (&values)[kWidth]) {
#ifndef MEMBOUND_CONVERTS_FLOAT4
  if constexpr (Format::kBits == 4 && kWidth % 8 == 0) {
    // Codes i and i + 4 of eight are the upper bits of two halves side by side.
#pragma unroll
    for (int first = 0; first < kWidth; first += 8) {
      const unsigned int word = codes[first / 2] | codes[first / 2 + 1] << 8 |
                                codes[first / 2 + 2] << 16 |
                                static_cast<unsigned int>(codes[first / 2 + 3]) << 24;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned int magnitudes = (i < 3 ? word << (9 - 4 * i) : word >> 3) & 0x0e000e00u;
        const unsigned int signs = word << (12 - 4 * i) & 0x80008000u;
        values[first + i] = half_of(magnitudes | signs);
        values[first + i + 4] = half_of((magnitudes | signs) >> 16);
      }
    }
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const bool two = i + 1 < kWidth;
    unsigned int pair = codes[i * Format::kBits / 8];
    if (Format::kBits == 8 && two) pair |= codes[i + 1] << 8;
    float none;
    Format::decode_two(pair, values[i], two ? values[i + 1] : none);
  }
}
