// Approximate arithmetic in float32: one special-function instruction each, relative error below
// 2^-21 (PTX ISA: ex2, rcp, rsqrt, sqrt, lg2 .approx; tanh is 2^-11), subnormals flushed to zero.
// They stand here so that the emulator has a twin of each.
#pragma once

#ifdef MEMBOUND_EMULATOR
#include <cmath>
#include <cstring>
#endif

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

__device__ inline float exp2_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return ::exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ inline float log2_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return ::log2f(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ inline float reciprocal_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ inline float rsqrt_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return 1.0f / ::sqrtf(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// x between 0 and 1, and 0 for NaN: no instruction of its own behind a multiplication or addition.
__device__ inline float saturate(float x) {
#ifdef MEMBOUND_EMULATOR
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
#else
  return __saturatef(x);
#endif
}

__device__ inline float sqrt_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return ::sqrtf(x);
#else
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Coarse: 2^-11 is enough for an output of 16 bits that is not multiplied up again.
__device__ inline float tanh_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  // As coarse as the instruction may be: 11 bits after the point are kept.
  const float exact = ::tanhf(x);
  unsigned int bits;
  std::memcpy(&bits, &exact, sizeof bits);
  bits &= 0xfffff000u;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
#else
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ inline float exp_fast(float x) { return exp2_fast(x * kLog2E); }

__device__ inline float log_fast(float x) { return log2_fast(x) * kLn2; }

// 0 at -inf, 1 at +inf.
__device__ inline float sigmoid_fast(float x) { return reciprocal_fast(1.0f + exp_fast(-x)); }

// Four bytes, from the lowest on: each 0xff or 0, as the sign bit of that byte of x is which the
// digit of kPlaces names.
template <unsigned int kPlaces>
__device__ inline unsigned int signs_of_bytes(unsigned int x) {
#ifdef MEMBOUND_EMULATOR
  unsigned int signs = 0u;
  for (int i = 0; i < 4; ++i) {
    const unsigned int place = kPlaces >> 4 * i & 3u;
    if (x >> 8 * place & 0x80u) signs |= 0xffu << 8 * i;
  }
  return signs;
#else
  unsigned int signs;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(signs) : "r"(x), "n"(kPlaces | 0x8888u));
  return signs;
#endif
}
