// SiLU: elementwise.cuh has the ladder, here is the arithmetic.
//
// Two special-function instructions an element (ex2, rcp), far below what copy speed leaves room
// for; tanh.approx would be one, but is too coarse for float32 and float16.
#include "elementwise.cuh"
#include "math.cuh"

struct Silu {
  // NaN at -inf (-inf * 0), as in PyTorch.
  static __device__ float apply(float x) { return x * sigmoid_fast(x); }
};

struct SiluBackward {
  // d/dx x s(x) = s (1 + x (1 - s)); NaN at both infinities, as in PyTorch.
  static __device__ float apply(float dy, float x) {
    const float s = sigmoid_fast(x);
    return dy * (s * fmaf(x, 1.0f - s, 1.0f));
  }
};
