// copy, scale, add, triad, fill: elementwise.cuh has the ladder, here is the arithmetic.
// read: row_sum.cuh has the ladder.
#include "elementwise.cuh"
#include "row_sum.cuh"

constexpr float kFactor = 1.7109375f;
constexpr float kFillValue = 0.7109375f;

struct Copy {
  static __device__ float apply(float x) { return x; }
};

struct Scale {
  static __device__ float apply(float x) { return kFactor * x; }
};

struct Add {
  static __device__ float apply(float a, float b) { return a + b; }
};

struct Triad {
  static __device__ float apply(float a, float b) { return fmaf(kFactor, b, a); }
};

struct Fill {
  static __device__ float apply() { return kFillValue; }
};
