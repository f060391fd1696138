// Approximate arithmetic in float32: one special-function instruction each, relative error below
// 2^-21 (PTX ISA: ex2, rcp, rsqrt, lg2 .approx; tanh is 2^-11), subnormals flushed to zero.
// They stand here so that the emulator has a twin of each.
#pragma once

#ifdef MEMBOUND_EMULATOR
#include <cmath>
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

// Coarse: 2^-11 is enough for an output of 16 bits that is not multiplied up again.
__device__ inline float tanh_fast(float x) {
#ifdef MEMBOUND_EMULATOR
  return ::tanhf(x);
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
