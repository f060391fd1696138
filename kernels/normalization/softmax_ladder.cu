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
    const long long start = row * columns;
    const auto every = [&](auto use) {
      for (int c = Team::first() * kWidth; c < columns; c += Team::kStride * kWidth) {
        use(start + c, load<Reuse::kSoon, kWidth>(x + start + c));
      }
    };
    float top = Maximum::identity();
    every([&](long long, const auto& values) { top = largest(values, top); });
    top = Team::template all<Maximum>(top);
    float sum = 0.0f;
    every([&](long long, const auto& values) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += exp_fast(to_float(values[i]) - top);
    });
    const float scale = 1.0f / Team::template all<Sum>(sum);
    every([&](long long at, const auto& values) {
      Vector<T, kWidth> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        out[i] = from_float<T>(exp_fast(to_float(values[i]) - top) * scale);
      }
      store<Reuse::kSoon>(y + at, out);
    });
  }

  template <int kWidth, int kVectors>
  __device__ void once(long long row) const {
    const long long start = row * columns;
    const auto column = [](int k) { return (k * kLadderThreads + threadIdx.x) * kWidth; };
    Vector<T, kWidth> in[kVectors];
    float top = Maximum::identity();
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) < columns) in[k] = load<Reuse::kSoon, kWidth>(x + start + column(k));
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) < columns) top = largest(in[k], top);
    }
    top = reduce_threads<Maximum, kLadderThreads>(top);
    float exponentials[kVectors][kWidth];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) >= columns) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        exponentials[k][i] = exp_fast(to_float(in[k][i]) - top);
        sum += exponentials[k][i];
      }
    }
    const float scale = 1.0f / sum_threads<kLadderThreads>(sum);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (column(k) >= columns) continue;
      Vector<T, kWidth> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[i] = from_float<T>(exponentials[k][i] * scale);
      store<Reuse::kSoon>(y + start + column(k), out);
    }
  }
};

template <typename T, class Team, int kWidth>
__global__ void __launch_bounds__(kLadderThreads)
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
__global__ void __launch_bounds__(kLadderThreads)
    softmax_registers(const T* x, T* y, long long rows, int columns) {
  const SoftmaxRow<T> body{x, y, columns};
  if (whole_vectors<kWidth>(columns, x, y)) {
    body.template once<kWidth, kVectors>(blockIdx.x);
  } else {
    body.template thrice<OneBlock, 1>(blockIdx.x);
  }
}
