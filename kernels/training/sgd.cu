// Stochastic gradient descent, plain and with momentum, and momentum alone: elementwise.cuh has the
// ladder, optimizer.cuh how two arrays are written in step.
#include "optimizer.cuh"

struct Numbers {
  float rate, momentum;

  __device__ float moved(float b, float g) const { return momentum * b + g; }
  __device__ float stepped(float p, float direction) const { return p - rate * direction; }
};

struct Sgd : Numbers {
  __device__ void apply(float (&out)[1], float p, float g) const { out[0] = stepped(p, g); }
};
struct Momentum : Numbers {
  __device__ void apply(float (&out)[1], float g, float b) const { out[0] = moved(b, g); }
};
struct SgdMomentum : Numbers {
  __device__ void apply(float (&out)[2], float p, float g, float b) const {
    out[1] = moved(b, g);
    out[0] = stepped(p, out[1]);
  }
};

// A rule has one output, and `b` is null, or two.
template <class Rule, int kOutputs, int kBytes, int kLoads, Reuse kStores, typename T,
          typename Last, typename... Inputs>
__global__ void sgd(T* y, Last* b, long long n, float rate, float momentum,
                    const Inputs*... inputs) {
  const Rule rule{{rate, momentum}};
  if constexpr (kOutputs == 1) {
    update<kBytes, kLoads, kStores>(Updated<Rule, T>(rule, y), n, inputs...);
  } else {
    update<kBytes, kLoads, kStores>(Updated<Rule, T, Last>(rule, y, b), n, inputs...);
  }
}
