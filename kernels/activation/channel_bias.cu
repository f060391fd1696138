// channel_bias_add: include/pool_plane.cuh has the ladder, column.cuh the second stage of dbias.
#include "column.cuh"
#include "pool_plane.cuh"

template <typename T>
struct AddBias {
  const T* bias;
  int channels, area;

  __device__ float number(long long plane) const {
    return to_float(load<Reuse::kSoon, 1>(bias + static_cast<int>(plane % channels))[0]);
  }
  static __device__ float apply(float bias, float x) { return x + bias; }
};
