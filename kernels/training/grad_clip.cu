// y = g · min(1, largest / (norm + 1e-6)): elementwise.cuh has the ladder. The norm stays on the
// device, so that no one waits for it; every thread loads it once, from the cache.
#include "optimizer.cuh"

struct Clip {
  float factor;

  __device__ static Clip from(float norm, float largest) {
    const float factor = largest / (norm + 1e-6f);
    return {factor > 1.0f ? 1.0f : factor};  // NaN stays
  }
  __device__ void apply(float (&out)[1], float g) const { out[0] = factor * g; }
};

template <int kBytes, int kLoads, Reuse kStores, typename T>
__global__ void grad_clip(T* y, long long n, float largest, const float* norm, const T* g) {
  const Clip clip = Clip::from(load<Reuse::kSoon, 1>(norm)[0], largest);
  update<kBytes, kLoads, kStores>(Updated<Clip, T>(clip, y), n, g);
}
