// Kernels that compute the right thing in machine code that no audit may pass.
#include "math.cuh"
#include "memory.cuh"
#include "shared.cuh"

__global__ void sound(float* y, const float* x, long long n) {
  const long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i + 4 <= n) store<Reuse::kNever>(y + i, load<Reuse::kNever, 4>(x + i));
}

__global__ void narrow(float* y, const float* x, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) store<Reuse::kNever>(y + i, load<Reuse::kNever, 1>(x + i));
}

__global__ void in_double(float* y, const float* x, long long n) {
  const long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i + 4 > n) return;
  Vector<float, 4> v = load<Reuse::kNever, 4>(x + i);
  for (int k = 0; k < 4; ++k) v[k] = v[k] * 0.1;
  store<Reuse::kNever>(y + i, v);
}

// The index is not known when it is compiled, and registers have no addresses.
__global__ void in_local_memory(float* y, const float* x, long long n) {
  float kept[64];
  for (int k = 0; k < 64; ++k) kept[load<Reuse::kNever, 1>(x + k)[0] < 1.0f ? k : 63 - k] = k * n;
  Vector<float, 4> v = load<Reuse::kNever, 4>(x + threadIdx.x * 4);
  for (int k = 0; k < 4; ++k) v[k] = kept[static_cast<int>(v[k]) & 63];
  store<Reuse::kNever>(y + threadIdx.x * 4, v);
}

// 96 values that wait for a barrier, in 32 registers.
__global__ void __launch_bounds__(1024, 2) spilling(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, slot, 1);
  float v[96];
#pragma unroll
  for (int k = 0; k < 96; ++k) v[k] = load<Reuse::kNever, 1>(x + k * n + threadIdx.x)[0];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 96; ++k) sum += v[k];
  slot[0] = sum;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 96; ++k) {
    store<Reuse::kNever>(y + k * n + threadIdx.x, Vector<float, 1>{{v[k] * slot[0]}});
  }
}

__global__ void greedy(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, most, 10 * 1024);
  for (int i = threadIdx.x; i < 10 * 1024; i += blockDim.x) most[i] = static_cast<float>(i * n);
  __syncthreads();
  const Vector<float, 4> v = load<Reuse::kNever, 4>(x + threadIdx.x * 4);
  store<Reuse::kNever>(y + threadIdx.x * 4,
                       Vector<float, 4>{{v[0], v[1], v[2], most[threadIdx.x * 7 % 10240]}});
}

// Where the next load is depends on the one before: one load a thread on its way, in few threads.
__global__ void __launch_bounds__(256) waiting(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, unused, 10 * 1024);
  unused[threadIdx.x] = static_cast<float>(n);
  long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  while (i + 4 <= n) {
    const Vector<float, 4> v = load<Reuse::kNever, 4>(x + i);
    store<Reuse::kNever>(y + i, v);
    __syncthreads();
    i += static_cast<long long>(unused[static_cast<int>(v[0]) & 1023]) * gridDim.x * blockDim.x * 4;
  }
}

__global__ void laborious(float* y, const float* x, long long n) {
  const long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i + 4 > n) return;
  Vector<float, 4> v = load<Reuse::kNever, 4>(x + i);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int turn = 0; turn < 64; ++turn) v[k] = v[k] * v[k] + 0.5f;
  }
  store<Reuse::kNever>(y + i, v);
}

__global__ void transcendental(float* y, const float* x, long long n) {
  const long long i = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
  if (i + 4 > n) return;
  Vector<float, 4> v = load<Reuse::kNever, 4>(x + i);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int turn = 0; turn < 8; ++turn) v[k] = rsqrt_fast(v[k]);
  }
  store<Reuse::kNever>(y + i, v);
}
