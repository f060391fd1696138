// sums[row] = the float32 sum of the row: a read stream that has to use what it reads.
//
// 1. One thread per row reads addresses a whole row apart: every lane of a warp another sector.
// 2. A block per row: consecutive threads take consecutive vectors of kBytes.
// 3. kLoads vectors are asked for before the first is added.
// 4. A row may begin anywhere (4097 columns): elements up to the first aligned address and after
//    the last whole vector go one by one, per row, and the rest stays vectors.
// 5. Sums run in float32 per thread, then over the block by shuffles, in a fixed order.
#pragma once

#include "memory.cuh"
#include "reduce.cuh"

struct Itself {
  static __device__ float apply(float x) { return x; }
};

// The sum of Term::apply over `length` elements, given to every thread of the block.
template <class Term, int kBytes, int kLoads, int kBlock, typename T>
__device__ float sum_run(const T* begin, long long length) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const auto term = [&](long long i) {
    return Term::apply(to_float(load<Reuse::kNever, 1>(begin + i)[0]));
  };
  const long long offset = reinterpret_cast<unsigned long long>(begin) % kBytes / sizeof(T);
  const long long to_aligned = (kWidth - offset) % kWidth;
  const long long head = to_aligned < length ? to_aligned : length;
  const long long vectors = (length - head) / kWidth;
  float sum = 0.0f;
  for (long long v = threadIdx.x; v < vectors; v += kLoads * kBlock) {
    Vector<T, kWidth> in[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (v + k * kBlock < vectors) {
        in[k] = load<Reuse::kNever, kWidth>(begin + head + (v + k * kBlock) * kWidth);
      }
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (v + k * kBlock < vectors) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum += Term::apply(to_float(in[k][i]));
      }
    }
  }
  if (threadIdx.x < head) sum += term(threadIdx.x);
  const long long tail = head + vectors * kWidth + threadIdx.x;
  if (tail < length) sum += term(tail);
  return sum_threads<kBlock>(sum);
}

template <int kBytes, int kLoads, int kBlock, typename T>
__global__ void row_sum(float* sums, const T* x, long long rows, long long columns) {
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const float sum = sum_run<Itself, kBytes, kLoads, kBlock>(x + row * columns, columns);
    if (threadIdx.x == 0) store<Reuse::kSoon>(sums + row, Vector<float, 1>{{sum}});
  }
}
