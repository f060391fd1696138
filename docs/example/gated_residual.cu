#include "activation.cuh"
#include "elementwise.cuh"

struct GatedResidual {
  static __device__ float apply(float residual, float x, float gate) {
    return residual + x * sigmoid_fast(gate);
  }
};
