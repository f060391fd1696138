// AdamW in one pass, and its four algebraic steps as kernels of their own. elementwise.cuh has the
// ladder, optimizer.cuh how several arrays are written in step.
//
// 1. Four kernels write a decayed parameter and both moments and read them again: 48 bytes where 28
//    must move.
// 2. One pass reads parameter, gradient and moments and writes what is new, beside them.
// 3. 1 - beta comes from the host: of 0.999 in float32 it would be wrong in the fifth digit.
#include "adamw.cuh"
#include "optimizer.cuh"

struct AdamW : Numbers {
  // The fourth output, where there is one, is a copy of the parameter in another type.
  template <int kOutputs>
  __device__ void apply(float (&out)[kOutputs], float p, float g, float m, float v) const {
    out[1] = first(g, m);
    out[2] = second(g, v);
    out[0] = stepped(decayed(p), out[1], out[2]);
    if constexpr (kOutputs == 4) out[3] = out[0];
  }
};
struct Decay : Numbers {
  __device__ void apply(float (&out)[1], float p) const { out[0] = decayed(p); }
};
struct FirstMoment : Numbers {
  __device__ void apply(float (&out)[1], float g, float m) const { out[0] = first(g, m); }
};
struct SecondMoment : Numbers {
  __device__ void apply(float (&out)[1], float g, float v) const { out[0] = second(g, v); }
};
struct Step : Numbers {
  __device__ void apply(float (&out)[1], float p, float m, float v) const {
    out[0] = stepped(p, m, v);
  }
};

// A rule has one output, three, or four; arrays that it does not have are null.
template <class Rule, int kOutputs, int kBytes, int kLoads, Reuse kStores, typename T,
          typename Copy, typename... Inputs>
__global__ void adamw(T* y, T* m, T* v, Copy* copy, long long n, float decay, float beta1,
                      float rest1, float beta2, float rest2, float rate, float correction,
                      float eps, const Inputs*... inputs) {
  const Rule rule{{decay, beta1, rest1, beta2, rest2, rate, correction, eps}};
  if constexpr (kOutputs == 1) {
    update<kBytes, kLoads, kStores>(Updated<Rule, T>(rule, y), n, inputs...);
  } else if constexpr (kOutputs == 3) {
    update<kBytes, kLoads, kStores>(Updated<Rule, T, T, T>(rule, y, m, v), n, inputs...);
  } else {
    update<kBytes, kLoads, kStores>(Updated<Rule, T, T, T, Copy>(rule, y, m, v, copy), n,
                                    inputs...);
  }
}
