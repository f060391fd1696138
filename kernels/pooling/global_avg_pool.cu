// global_avg_pool: include/pool_plane.cuh has the ladder.
#include "pool_plane.cuh"

// dx of a mean.
template <typename T>
struct Spread {
  const T* dy;
  int channels, area;

  __device__ float number(long long plane) const {
    return to_float(load<Reuse::kSoon, 1>(dy + plane)[0]) *
           reciprocal_fast(static_cast<float>(area));
  }
  static __device__ float apply(float share) { return share; }
};
