// SwiGLU and quantization in one pass: include/quantize.cuh has the ladder, activation.cuh the
// arithmetic. The product is rounded as it would be stored, then quantized from its registers.
#include "activation.cuh"
#include "quantize.cuh"

template <typename T>
struct Swiglu {
  static __device__ float apply(float gate, float up) {
    return to_float(from_float<T>(Silu<T>::apply(gate) * up));
  }
};
