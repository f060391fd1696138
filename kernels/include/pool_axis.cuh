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
  // Windows [first, after) have the element.
  __device__ int first(int element) const {
    const int at = element + padding;
    return at < kKernel ? 0 : (at - kKernel) / kStride + 1;
  }
  __device__ int after(int element) const { return min((element + padding) / kStride + 1, windows); }
  // 1 / the elements of a window, padding included.
  static __device__ float weight(int, int) { return 1.0f / kKernel; }
};

// n / divisor for 0 <= n < 2^31: factor is 2^63 / divisor, rounded up.
struct Divider {
  unsigned long long factor;

  __device__ int operator()(int n) const {
    return static_cast<int>(__umul64hi(2ull * static_cast<unsigned int>(n), factor));
  }
};

// Windows that divide the axis as evenly as it goes, PyTorch's: window o is
// [floor(o length / windows), ceil((o + 1) length / windows)). Neighbours share an element where
// the length does not divide. length * (windows + 1) and its twin stay below 2^31.
struct AdaptiveAxis {
  static constexpr int kKernel = 0, kStride = 1;  // they differ
  int length, windows;
  Divider by_length, by_windows;

  __device__ int begin(int window) const { return by_windows(window * length); }
  __device__ int end(int window) const {
    return by_windows((window + 1) * length + windows - 1);
  }
  __device__ int first(int element) const { return by_length(element * windows); }
  __device__ int after(int element) const {
    return by_length((element + 1) * windows + length - 1);
  }
  static __device__ float weight(int begin, int end) {
    return reciprocal_fast(static_cast<float>(end - begin));
  }
};
