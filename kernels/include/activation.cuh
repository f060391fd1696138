// The arithmetic of the activations, in float32: y = apply(x), dx = gradient(dy, v). v is x, or y
// where PyTorch keeps that (relu, sigmoid, tanh).
//
// T is what elements are stored as: 16 bits may be computed as coarsely as they are rounded.
//
// An H100 at copy speed can issue some 39 instructions, 5 of them special functions, per element of
// 16 bits forward (132 multiprocessors, 128 lanes, 16 special lanes, 1.755 GHz; 3.0 TB/s, 4 bytes).
// A copy takes 4. On top of it, in the machine code of sm_90 for bfloat16:
//
//                  forward  backward  special functions
//   relu              2        1      none
//   leaky_relu        2        1      none
//   hardswish         5        5      none
//   sigmoid           4        2      ex2, rcp; backward from y none. The tail keeps its digits.
//   silu              6        9      ex2, rcp
//   tanh              1        1      tanh; float32 and float16 16 with ex2, rcp
//   gelu_tanh         8       14      ex2, rcp: x sigmoid(2u); 1 + tanh(u) cancels in the tail
//   gelu             14       14      ex2, rcp: the normal distribution's tail by a polynomial
//   mish             10       14      ex2, rcp: tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2)
//   elu              12        3      ex2, and a polynomial where exp(x) - 1 cancels
//
// So gelu, the most, takes 18 of 39: none is bound by issue.
//
// Limits: where x would meet a factor of zero at infinity, x is bounded, so that y is -0 at -inf and
// slopes are 0 and 1. NaN comes through the other factor. `a > b ? b : a` keeps it, fminf does not.
#pragma once

#include "math.cuh"
#include "memory.cuh"

constexpr float kLargest = 3.40282346638528859812e38f;

// The operation of elementwise.cuh that computes dx.
template <class Activation>
struct Gradient {
  static __device__ float apply(float dy, float v) { return Activation::gradient(dy, v); }
};

template <typename T>
struct Relu {
  // Keeps -0 and NaN.
  static __device__ float apply(float x) { return x < 0.0f ? 0.0f : x; }
  static __device__ float gradient(float dy, float y) { return y <= 0.0f ? 0.0f : dy; }
};

template <typename T>
struct LeakyRelu {
  static constexpr float kSlope = 0.01f;
  static __device__ float apply(float x) { return x > 0.0f ? x : kSlope * x; }
  static __device__ float gradient(float dy, float x) { return x > 0.0f ? dy : kSlope * dy; }
};

template <typename T>
struct Hardswish {
  static __device__ float apply(float x) {
    return x <= -3.0f ? -0.0f : x * saturate(fmaf(x, 1.0f / 6.0f, 0.5f));
  }
  static __device__ float gradient(float dy, float x) {
    const float inside = x < 3.0f ? dy * fmaf(x, 1.0f / 3.0f, 0.5f) : dy;
    return x <= -3.0f ? 0.0f : inside;
  }
};

template <typename T>
struct Sigmoid {
  static __device__ float apply(float x) { return sigmoid_fast(x); }
  static __device__ float gradient(float dy, float y) { return dy * (y * (1.0f - y)); }
};

template <typename T>
struct Silu {
  static __device__ float apply(float x) { return fmaxf(x, -kLargest) * sigmoid_fast(x); }

  // d/dx x s(x) = s (1 + x (1 - s)).
  static __device__ float gradient(float dy, float x) {
    const float s = sigmoid_fast(x);
    const float bounded = fminf(fmaxf(x, -kLargest), kLargest);
    return dy * (s * fmaf(bounded, 1.0f - s, 1.0f));
  }
};

template <typename T>
struct Tanh {
  static __device__ float apply(float x) {
    // 1 - 2 / (1 + exp(2 |x|)) has lost the digits of a small |x|; x (1 + x^2 P(x^2)) is within
    // 2^-23.
    const float a = fabsf(x);
    const float u = x * x;
    float p = fmaf(u, 0.01547226f, -0.05211956f);
    p = fmaf(u, p, 0.13311437f);
    p = fmaf(u, p, -0.33332539f);
    const float far = fmaf(-2.0f, reciprocal_fast(1.0f + exp_fast(2.0f * a)), 1.0f);
    return a < 0.6f ? x * fmaf(u, p, 1.0f) : copysignf(far, x);
  }
  static __device__ float gradient(float dy, float y) { return dy * fmaf(-y, y, 1.0f); }
};

// 2^-11 is a quarter of what bfloat16 rounds away.
template <>
__device__ inline float Tanh<__nv_bfloat16>::apply(float x) {
  return tanh_fast(x);
}

// x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
struct GeluTanh {
  static constexpr float kSlope = 1.59576912160573071176f;  // of 2u at 0: sqrt(8 / pi)
  static constexpr float kCubic = 0.044715f;

  static __device__ float sigmoid_2u(float x) {
    const float slope = fmaf(-kSlope * kCubic * kLog2E, x * x, -kSlope * kLog2E);
    return reciprocal_fast(1.0f + exp2_fast(x * slope));
  }
  static __device__ float apply(float x) { return fmaxf(x, -kLargest) * sigmoid_2u(x); }

  // s + x s (1 - s) 2u'; beyond 16 the second term is nothing.
  static __device__ float gradient(float dy, float x) {
    const float s = sigmoid_2u(x);
    const float bounded = fminf(fmaxf(x, -16.0f), 16.0f);
    const float slope = fmaf(3.0f * kSlope * kCubic, bounded * bounded, kSlope);
    return dy * fmaf(bounded * slope, s * (1.0f - s), s);
  }
};

// x P(x), P the normal distribution. With the tail Q(a) = P(-a) = exp(-a^2 / 2) r(a), a = |x|, this
// is x - a Q or -a Q: nothing cancels. r is a polynomial in 1 / (1 + 0.3 a), fitted to the least
// relative error for 0 <= a <= 15: 2^-22, or 2^-12 where 16 bits are stored.
template <typename T>
struct Gelu {
  static constexpr float kDensity = 0.398942280401432677940f;  // 1 / sqrt(2 pi)
  static constexpr float kEnd = 15.0f;                         // Q is 0 in float32

  static __device__ float r(float a) {
    const float t = reciprocal_fast(fmaf(0.3f, a, 1.0f));
    float p;
    if constexpr (sizeof(T) == 2) {
      p = 0.208844967f;
      p = fmaf(p, t, 0.0355873918f);
      p = fmaf(p, t, 0.137478352f);
      p = fmaf(p, t, 0.118204358f);
    } else {
      p = 0.0351454747f;
      p = fmaf(p, t, -0.154963373f);
      p = fmaf(p, t, 0.202440404f);
      p = fmaf(p, t, -0.0500408905f);
      p = fmaf(p, t, 0.126619755f);
      p = fmaf(p, t, 0.100503304f);
      p = fmaf(p, t, 0.120659885f);
      p = fmaf(p, t, 0.119635361f);
    }
    return p * t;
  }
  static __device__ float bell(float a) { return exp2_fast(a * a * (-0.5f * kLog2E)); }

  static __device__ float apply(float x) {
    const float a = fminf(fabsf(x), kEnd);
    const float ramp = x < 0.0f ? -0.0f : x;
    return fmaf(-a * bell(a), r(a), ramp);
  }

  // P(x) + x P'(x).
  static __device__ float gradient(float dy, float x) {
    const float size = fabsf(x);
    const float a = size > kEnd ? kEnd : size;
    const float tail = bell(a) * fmaf(-kDensity, a, r(a));
    return dy * (x < 0.0f ? tail : 1.0f - tail);
  }
};

// x n / (n + 2), n = e (e + 2), e = exp(x). From 20 on the factor is 1, before e^2 overflows.
template <typename T>
struct Mish {
  static constexpr float kEnd = 20.0f;

  static __device__ float apply(float x) {
    const float e = exp_fast(x > kEnd ? kEnd : x);
    const float n = e * (e + 2.0f);
    return fmaxf(x, -kLargest) * (n * reciprocal_fast(n + 2.0f));
  }

  // (n + x n' 2 / (n + 2)) / (n + 2), n' = 2 e (e + 1).
  static __device__ float gradient(float dy, float x) {
    const float bounded = x > kEnd ? kEnd : x;
    const float e = exp_fast(bounded);
    const float n = e * (e + 2.0f);
    const float d = reciprocal_fast(n + 2.0f);
    const float rise = 4.0f * d * (e * (e + 1.0f));
    return dy * (d * fmaf(fmaxf(bounded, -kLargest), rise, n));
  }
};

template <typename T>
struct Elu {
  static constexpr float kAlpha = 1.0f;

  static __device__ float apply(float x) {
    // exp(x) - 1 has lost the digits of a small x; x (1 + x P(x)) is within 2^-24.
    float p = fmaf(x, 0.00675291f, 0.04098504f);
    p = fmaf(x, p, 0.16654419f);
    p = fmaf(x, p, 0.49999251f);
    const float below = x > -0.5f ? x * fmaf(x, p, 1.0f) : exp_fast(x) - 1.0f;
    return x > 0.0f ? x : kAlpha * below;
  }
  static __device__ float gradient(float dy, float x) {
    return x <= 0.0f ? dy * (kAlpha * exp_fast(x)) : dy;
  }
};
