// Gated activations: elementwise.cuh has the ladder, activation.cuh the arithmetic.
//
// Forward reads two arrays and writes one, backward reads three and writes two: in one pass each,
// where separate kernels write the activation, its gradient, and read them again.
#include "activation.cuh"
#include "elementwise.cuh"

template <class Activation>
struct Gated {
  static __device__ float apply(float gate, float up) { return Activation::apply(gate) * up; }
};

template <class Activation>
struct GatedGradient {
  static __device__ Two apply(float dy, float gate, float up) {
    return {Activation::gradient(dy * up, gate), dy * Activation::apply(gate)};
  }
};
