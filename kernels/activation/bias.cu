// bias_add, bias_gelu, bias_relu: row_bias.cuh has the ladder, activation.cuh the arithmetic.
#include "activation.cuh"
#include "row_bias.cuh"

template <typename T>
struct Identity {
  static constexpr bool kLinear = true;
  static __device__ float apply(float pre) { return pre; }
};

// The slope of relu is that of its input's sign, as it is of its output's.
template <class Activation>
struct Activated : Activation {
  static constexpr bool kLinear = false;
};
