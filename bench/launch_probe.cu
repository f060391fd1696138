// One kernel per element type, to see that a compiler, its headers and the driver fit together.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__global__ void count(T* y) {
  y[threadIdx.x] = static_cast<T>(static_cast<float>(threadIdx.x));
}
