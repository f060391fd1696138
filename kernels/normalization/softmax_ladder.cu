// Softmax forward, step by step; the last one is softmax.cu's.
//
// naive      a thread per row, three loops (maximum, sum, quotient): x is read three times
// shared     a block per row, reduced in shared memory: coalesced
// vector     by 16 bytes at once
// registers  the row stays with its threads: x is read once, each exponential is formed once
// The default adds rows of a warp or less, a persistent grid, and the next row's loads.
#include "ladder.cuh"
#include "math.cuh"

template <typename T>
struct SoftmaxRow {
  const T* x;
  T* y;
  int columns;

  template <int kWidth>
  static __device__ float largest(const Vector<T, kWidth>& values, float top) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) top = Maximum::apply(top, to_float(values[i]));
    return top;
  }

  template <class Team, int kWidth>
  __device__ void thrice(long long row) const {
    const T* const in = x + row * columns;
    T* const out = y + row * columns;
    constexpr int kStep = Team::kStride * kWidth;
    float top = Maximum::identity();
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      top = largest(load<Reuse::kSoon, kWidth>(in + c), top);
    }
    top = Team::template all<Maximum>(top);
    float sum = 0.0f;
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      const auto values = load<Reuse::kSoon, kWidth>(in + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += exp_fast(to_float(values[i]) - top);
    }
    const float scale = reciprocal_fast(Team::template all<Sum>(sum));
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      const auto values = load<Reuse::kSoon, kWidth>(in + c);
      float shares[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) shares[i] = exp_fast(to_float(values[i]) - top) * scale;
      store<Reuse::kSoon>(out + c, from_floats<T>(shares));
    }
  }

  template <int kWidth, int kVectors>
  __device__ void once(long long row) const {
    const long long start = row * columns;
    Vector<T, kWidth> in[kVectors];
    float top = Maximum::identity();
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c < columns) in[k] = load<Reuse::kSoon, kWidth>(x + start + c);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (own_column<kWidth>(k) < columns) top = largest(in[k], top);
    }
    top = reduce_threads<Maximum, kLadderThreads>(top);
    float exponentials[kVectors][kWidth];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c >= columns) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        exponentials[k][i] = exp_fast(to_float(in[k][i]) - top);
        sum += exponentials[k][i];
      }
    }
    const float scale = reciprocal_fast(sum_threads<kLadderThreads>(sum));
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c >= columns) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) exponentials[k][i] *= scale;
      store<Reuse::kSoon>(y + start + c, from_floats<T>(exponentials[k]));
    }
  }
};

template <typename T, class Team, int kWidth>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    softmax_step(const T* x, T* y, long long rows, int columns) {
  const SoftmaxRow<T> body{x, y, columns};
  const long long row = Team::row();
  if (row >= rows) return;
  if (whole_vectors<kWidth>(columns, x, y)) {
    body.template thrice<Team, kWidth>(row);
  } else {
    body.template thrice<Team, 1>(row);
  }
}

template <typename T, int kWidth, int kVectors>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    softmax_registers(const T* x, T* y, long long rows, int columns) {
  const SoftmaxRow<T> body{x, y, columns};
  if (whole_vectors<kWidth>(columns, x, y)) {
    body.template once<kWidth, kVectors>(blockIdx.x);
  } else {
    body.template thrice<OneBlock, 1>(blockIdx.x);
  }
}
