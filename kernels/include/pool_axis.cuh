// Which elements of an axis a window takes, and which windows an element is in.
#pragma once

#include "math.cuh"

// Windows of kKernel elements, kStride apart; the first begins `padding` before the axis.
template <int kKernel_, int kStride_>
struct FixedAxis {
  static constexpr int kKernel = kKernel_, kStride = kStride_;
  int length, windows, padding;

  // May lie outside of the axis.
  __device__ int begin(int window) const { return window * kStride - padding; }
  __device__ int end(int window) const { return begin(window) + kKernel; }
  // The last window that would have the element, were kernels as long as that.
  __device__ int cell(int element) const { return (element + padding) / kStride; }
  // Windows [first, after) have the element.
  __device__ int first(int element) const {
    const int at = element + padding;
    return at < kKernel ? 0 : (at - kKernel) / kStride + 1;
  }
  __device__ int after(int element) const { return min((element + padding) / kStride + 1, windows); }
};

// n / divisor for 0 <= n < 2^31: factor is 2^63 / divisor, rounded up.
struct Divider {
  unsigned long long factor;

  __device__ int operator()(int n) const {
    return static_cast<int>(__umul64hi(2ull * static_cast<unsigned int>(n), factor));
  }
};
