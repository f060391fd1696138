// Copies that are wrong on purpose, each in one way, and one that is right.
#include "cluster.cuh"
#include "memory.cuh"
#include "reduce.cuh"
#include "shared.cuh"

__device__ long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ void copy_one(float* y, const float* x, long long i) {
  store<Reuse::kNever>(y + i, load<Reuse::kNever, 1>(x + i));
}

__global__ void right(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i < n) copy_one(y, x, i);
}

__global__ void loads_past_the_end(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i < n) store<Reuse::kNever>(y + i, load<Reuse::kNever, 1>(x + i + 1));
}

__global__ void stores_past_the_end(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i < n) copy_one(y, x, i);
  if (i == n) store<Reuse::kNever>(y + i, Vector<float, 1>{{0.0f}});
}

__global__ void stores_before_the_beginning(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i < n) copy_one(y, x, i);
  if (i == 0) store<Reuse::kNever>(y - 1, Vector<float, 1>{{0.0f}});
}

__global__ void loads_misaligned_vectors(float* y, const float* x, long long n) {
  const long long i = thread_index() * 4;
  if (i + 5 <= n) store<Reuse::kNever>(y + i, load<Reuse::kNever, 4>(x + i + 1));
}

__global__ void writes_around_the_header(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i <= n) y[i] = 0.0f;
}

__global__ void indexes_past_shared_memory(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, few, 32);
  const long long i = thread_index();
  few[threadIdx.x] = 0.0f;
  if (i < n) copy_one(y, x, i);
}

template <bool kBarrier>
__global__ void through_shared_memory(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, tile, 256);
  const long long i = thread_index();
  if (i < n) tile[threadIdx.x] = load<Reuse::kNever, 1>(x + i)[0];
  if constexpr (kBarrier) __syncthreads();
  const long long from = i ^ 255;  // the block's other end
  if (from < n) store<Reuse::kNever>(y + from, Vector<float, 1>{{tile[threadIdx.x ^ 255]}});
}

__global__ void loads_twice(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i < n) copy_one(y, x, i);
  if (i < n) copy_one(y, x, i);
}

__global__ void strides_through_memory(float* y, const float* x, long long n) {
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long each = (n + threads - 1) / threads * 8;
  for (long long i = thread_index() * each; i < (thread_index() + 1) * each && i < n; ++i) {
    copy_one(y, x, i);
  }
}

__global__ void leaves_lanes_behind(float* y, const float* x, long long n) {
  if (threadIdx.x % 2) __syncwarp();
}

__global__ void leaves_threads_at_a_barrier(float* y, const float* x, long long n) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __shfl_xor_sync(threadIdx.x == 32 ? 3u : 1u << threadIdx.x % 32, 1.0f, 0);
  }
}

__global__ void shuffles_from_outside(float* y, const float* x, long long n) {
  if (threadIdx.x < 16) __shfl_sync(0xffffu, 1.0f, 20);
}

__global__ void adds_in_any_order(float* y, const float* x, long long n) {
  const long long i = thread_index();
  if (i == 0) y[0] = 0.0f;
  if (i < n) atomicAdd(y, load<Reuse::kNever, 1>(x + i)[0]);
}

__global__ void counts_in_32_bits(float* y, const float* x, long long n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) copy_one(y, x, i);
}

// Every block copies through the shared memory of the next block of its cluster.
template <bool kArrives, bool kStays, int kAhead>
__device__ void through_a_neighbour(float* y, const float* x, long long n) {
  SHARED_ARRAY(float, tile, 256);
  constexpr int kCluster = 4;
  const int rank = blockIdx.x % kCluster;
  const long long first = static_cast<long long>(blockIdx.x - rank) * blockDim.x + threadIdx.x;
  const int next = (rank + 1) % kCluster;
  const long long i = first + rank * blockDim.x, from = first + next * blockDim.x;
  if (i < n) tile[threadIdx.x] = load<Reuse::kNever, 1>(x + i)[0];
  if constexpr (kArrives) cluster_sync();
  const float value = load_of_block(&tile[threadIdx.x], next + kAhead);
  if (from < n) store<Reuse::kNever>(y + from, Vector<float, 1>{{value}});
  if constexpr (kStays) cluster_sync();
}

__global__ void through_a_cluster(float* y, const float* x, long long n) {
  through_a_neighbour<true, true, 0>(y, x, n);
}

__global__ void reads_a_neighbour_too_early(float* y, const float* x, long long n) {
  through_a_neighbour<false, true, 0>(y, x, n);
}

__global__ void ends_before_it_is_read(float* y, const float* x, long long n) {
  through_a_neighbour<true, false, 0>(y, x, n);
}

__global__ void reads_beyond_its_cluster(float* y, const float* x, long long n) {
  through_a_neighbour<true, true, 4>(y, x, n);
}

__global__ void leaves_a_block_at_a_cluster_barrier(float* y, const float* x, long long n) {
  if (blockIdx.x % 2) __shfl_xor_sync(1u << threadIdx.x % 32, 1.0f, 0);
  else if (threadIdx.x) cluster_sync();
  else __syncthreads(), cluster_sync();
}
