"""Activations as CUDA C++ text for CuPy: float32 of x, or of dy and what backward keeps.

Polynomials and limits are those of the CUDA C++ kernels: include/activation.cuh.
"""

from __future__ import annotations

PREAMBLE = """
#define LARGEST 3.40282347e38f
__device__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ float at_least(float x, float low) { return x < low ? low : x; }  // NaN stays
__device__ float at_most(float x, float high) { return x > high ? high : x; }
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ float relu_gradient(float dy, float y) { return y <= 0.0f ? 0.0f : dy; }
__device__ float leaky_relu(float x) { return x > 0.0f ? x : 0.01f * x; }
__device__ float leaky_relu_gradient(float dy, float x) { return x > 0.0f ? dy : 0.01f * dy; }
__device__ float sigmoid_gradient(float dy, float y) { return dy * (y * (1.0f - y)); }
__device__ float silu(float x) { return at_least(x, -LARGEST) * sigmoid(x); }
__device__ float silu_gradient(float dy, float x) {
    float s = sigmoid(x);
    return dy * (s * (1.0f + at_most(at_least(x, -LARGEST), LARGEST) * (1.0f - s)));
}
__device__ float hardswish(float x) {
    return x <= -3.0f ? -0.0f : x >= 3.0f ? x : x * (x * (1.0f / 6.0f) + 0.5f);
}
__device__ float hardswish_gradient(float dy, float x) {
    return x <= -3.0f ? 0.0f : x < 3.0f ? dy * (x * (1.0f / 3.0f) + 0.5f) : dy;
}
__device__ float elu(float x) {
    float p = ((0.00675291f * x + 0.04098504f) * x + 0.16654419f) * x + 0.49999251f;
    return x > 0.0f ? x : x > -0.5f ? x * (1.0f + x * p) : __expf(x) - 1.0f;
}
__device__ float elu_gradient(float dy, float x) { return x <= 0.0f ? dy * __expf(x) : dy; }
__device__ float tanh_of(float x) {
    float a = x < 0.0f ? -x : x, u = x * x;
    float p = ((0.01547226f * u - 0.05211956f) * u + 0.13311437f) * u - 0.33332539f;
    float far = 1.0f - 2.0f / (1.0f + __expf(2.0f * a));
    return a < 0.6f ? x * (1.0f + u * p) : x < 0.0f ? -far : far;
}
__device__ float tanh_of_gradient(float dy, float y) { return dy * (1.0f - y * y); }
__device__ float normal_tail(float a) {  // over exp(-a^2 / 2)
    float t = 1.0f / (1.0f + 0.3f * a);
    float p = (0.0351454747f * t - 0.154963373f) * t + 0.202440404f;
    p = ((p * t - 0.0500408905f) * t + 0.126619755f) * t + 0.100503304f;
    return ((p * t + 0.120659885f) * t + 0.119635361f) * t;
}
__device__ float gelu(float x) {
    float a = at_most(x < 0.0f ? -x : x, 15.0f);
    return (x < 0.0f ? -0.0f : x) - a * __expf(-0.5f * a * a) * normal_tail(a);
}
__device__ float gelu_gradient(float dy, float x) {
    float a = at_most(x < 0.0f ? -x : x, 15.0f);
    float tail = __expf(-0.5f * a * a) * (normal_tail(a) - 0.398942280f * a);
    return dy * (x < 0.0f ? tail : 1.0f - tail);
}
__device__ float gelu_tanh(float x) {
    return at_least(x, -LARGEST) * sigmoid(x * (1.59576912f + 0.0713548163f * x * x));
}
__device__ float gelu_tanh_gradient(float dy, float x) {
    float v = at_most(at_least(x, -10.0f), 10.0f);  // e is finite; slopes are 0 and 1 from here on
    float e = __expf(-v * (1.59576912f + 0.0713548163f * v * v)), s = 1.0f / (1.0f + e);
    return dy * (s + v * (1.59576912f + 0.214064449f * v * v) * s * (e * s));  // 1 - s = e s
}
__device__ float mish(float x) {
    float e = __expf(at_most(x, 20.0f)), n = e * (e + 2.0f);
    return at_least(x, -LARGEST) * (n / (n + 2.0f));
}
__device__ float mish_gradient(float dy, float x) {
    float v = at_most(at_least(x, -LARGEST), 20.0f);
    float e = __expf(v), n = e * (e + 2.0f), d = 1.0f / (n + 2.0f);
    return dy * (d * (n + v * (4.0f * d * (e * (e + 1.0f)))));
}
"""

NAMES = {"tanh": "tanh_of"}
"""Where the function has not the name of the operation."""
