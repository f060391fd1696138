// channel_bias_add: include/pool_plane.cuh has the ladder, column.cuh the second stage of dbias.
#include "column.cuh"
#include "pool_plane.cuh"

template <typename T>
struct AddBias {
  const T* bias;
  int channels, area;

  // There are fewer than 2^31 planes: so 32 bits are divided.
  __device__ float number(long long plane) const {
    const unsigned int channel =
        static_cast<unsigned int>(plane) % static_cast<unsigned int>(channels);
    return to_float(load<Reuse::kSoon, 1>(bias + channel)[0]);
  }
  static __device__ float apply(float bias, float x) { return x + bias; }
};
