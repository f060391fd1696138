// The norm of every tensor of a model, and of all of them, over one arena.
//
// 1. A kernel per tensor: 148 launches for GPT-2, most for a bias of a few hundred elements.
// 2. One launch whose blocks each take a piece of one tensor, 32768 elements at most. Which tensor
//    that is, a block looks up in the table of first pieces, every thread a part of it.
// 3. A block sums the squares of its piece as row_sum.cuh does, wherever the tensor begins, and
//    leaves one float32. A second kernel of one block adds them tensor by tensor, in a fixed order.
#include "row_sum.cuh"

struct Square {
  static __device__ float apply(float x) { return x * x; }
};

// squares[p] of piece p; firsts[t], where the pieces of tensor t begin among them.
template <int kBytes, int kLoads, int kBlock, int kPiece, typename T>
__global__ void grad_squares(float* squares, int* firsts, const T* g, const long long* starts,
                             const long long* pieces, int tensors) {
  SHARED_ARRAY(int, found, 1);
  for (int t = threadIdx.x; t < tensors; t += kBlock) {
    const long long first = load<Reuse::kSoon, 1>(pieces + t)[0];
    const long long next = load<Reuse::kSoon, 1>(pieces + t + 1)[0];
    if (first <= blockIdx.x && blockIdx.x < next) found[0] = t;
  }
  __syncthreads();
  const int tensor = found[0];
  const int first = static_cast<int>(load<Reuse::kSoon, 1>(pieces + tensor)[0]);
  const int piece = static_cast<int>(blockIdx.x);
  const long long begin = load<Reuse::kSoon, 1>(starts + tensor)[0] +
                          static_cast<long long>(piece - first) * kPiece;
  const long long left = load<Reuse::kSoon, 1>(starts + tensor + 1)[0] - begin;
  const float sum =
      sum_run<Square, kBytes, kLoads, kBlock>(g + begin, left < kPiece ? left : kPiece);
  if (threadIdx.x == 0) {
    store<Reuse::kSoon>(squares + piece, Vector<float, 1>{{sum}});
    if (piece == first) store<Reuse::kSoon>(firsts + tensor, Vector<int, 1>{{piece}});
  }
}

// One block. A warp takes every so-many-th tensor.
template <int kBlock>
__global__ void grad_norms(float* norms, float* norm, const float* squares, const int* firsts,
                           int tensors, int pieces) {
  constexpr int kWarps = kBlock / kWarp;
  const int lane = threadIdx.x % kWarp;
  float total = 0.0f;
  for (int t = threadIdx.x / kWarp; t < tensors; t += kWarps) {
    const int begin = load<Reuse::kSoon, 1>(firsts + t)[0];
    const int end = t + 1 < tensors ? load<Reuse::kSoon, 1>(firsts + t + 1)[0] : pieces;
    float sum = 0.0f;
    for (int p = begin + lane; p < end; p += kWarp) {
      sum += load<Reuse::kSoon, 1>(squares + p)[0];
    }
    sum = reduce_lanes<Sum>(sum);
    if (lane == 0) {
      store<Reuse::kSoon>(norms + t, Vector<float, 1>{{sqrtf(sum)}});
      total += sum;
    }
  }
  total = sum_threads<kBlock>(total);
  if (threadIdx.x == 0) store<Reuse::kSoon>(norm, Vector<float, 1>{{sqrtf(total)}});
}
