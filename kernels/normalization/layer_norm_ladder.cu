// Layer normalization backward, step by step; the last one is layer_norm.cu's.
//
// naive      dx by a thread per row, two loops; dweight and dbias by a thread per column: dy and x
//            are read three times
// shared     dx by a block per row; sums by tiles of columns, added up in shared memory: coalesced,
//            and as many loads on their way as there are rows in a tile
// vector     dx by 16 bytes at once
// registers  a block walks over rows, keeps a row with its threads and the sums of their columns
//            beside it: dy and x are read once; column_sums adds what the blocks leave
// The default adds rows of a warp or less, the next row's loads, and rows that are cut in memory.
#include "column.cuh"
#include "ladder.cuh"
#include "math.cuh"

template <typename T>
struct LayerNormRow {
  const T* dy;
  const T* x;
  const T* weight;
  T* dx;
  int columns;

  // The sums over a row of dy * weight, and of that times the normalized x.
  template <int kWidth>
  static __device__ void project(const Vector<T, kWidth>& dy, const Vector<T, kWidth>& x,
                                 const Vector<T, kWidth>& weight, float mean, float rstd,
                                 float& along_one, float& along_x) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = to_float(dy[i]) * to_float(weight[i]);
      along_one += g;
      along_x += g * ((to_float(x[i]) - mean) * rstd);
    }
  }

  // along_one and along_x are means by now.
  template <int kWidth>
  __device__ void put(long long at, const Vector<T, kWidth>& dy, const Vector<T, kWidth>& x,
                      const Vector<T, kWidth>& weight, float mean, float rstd, float along_one,
                      float along_x) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = to_float(dy[i]) * to_float(weight[i]);
      const float normalized = (to_float(x[i]) - mean) * rstd;
      out[i] = (g - along_one - normalized * along_x) * rstd;
    }
    store<Reuse::kSoon>(dx + at, from_floats<T>(out));
  }

  template <class Team, int kWidth>
  __device__ void twice(long long row, float mean, float rstd) const {
    const long long start = row * columns;
    constexpr int kStep = Team::kStride * kWidth;
    const float inverse = reciprocal_fast(static_cast<float>(columns));
    float along_one = 0.0f, along_x = 0.0f;
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      project(load<Reuse::kSoon, kWidth>(dy + start + c), load<Reuse::kSoon, kWidth>(x + start + c),
              load<Reuse::kSoon, kWidth>(weight + c), mean, rstd, along_one, along_x);
    }
    along_one = Team::template all<Sum>(along_one) * inverse;
    along_x = Team::template all<Sum>(along_x) * inverse;
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      put(start + c, load<Reuse::kSoon, kWidth>(dy + start + c),
          load<Reuse::kSoon, kWidth>(x + start + c), load<Reuse::kSoon, kWidth>(weight + c), mean,
          rstd, along_one, along_x);
    }
  }
};

template <typename T, class Team, int kWidth>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    layer_norm_step(const T* dy, const T* x, const T* weight, const float* mean, const float* rstd,
                    T* dx, long long rows, int columns) {
  const LayerNormRow<T> body{dy, x, weight, dx, columns};
  const long long row = Team::row();
  if (row >= rows) return;
  const float m = load<Reuse::kSoon, 1>(mean + row)[0];
  const float r = load<Reuse::kSoon, 1>(rstd + row)[0];
  if (whole_vectors<kWidth>(columns, dy, x, weight, dx)) {
    body.template twice<Team, kWidth>(row, m, r);
  } else {
    body.template twice<Team, 1>(row, m, r);
  }
}

// dweight and dbias of kColumns columns; the block's threads share the rows of each among them.
template <typename T, int kColumns>
__global__ void __launch_bounds__(kLadderThreads, kLadderBlocks)
    layer_norm_columns(const T* dy, const T* x, const float* mean, const float* rstd, T* dweight,
                       T* dbias, long long rows, int columns) {
  constexpr int kRows = kLadderThreads / kColumns;
  SHARED_ARRAY(float, weights, kLadderThreads);
  SHARED_ARRAY(float, biases, kLadderThreads);
  const int column = blockIdx.x * kColumns + threadIdx.x % kColumns;
  float weight = 0.0f, bias = 0.0f;
  if (column < columns) {
    for (long long row = threadIdx.x / kColumns; row < rows; row += kRows) {
      const float gradient = to_float(load<Reuse::kSoon, 1>(dy + row * columns + column)[0]);
      const float value = to_float(load<Reuse::kSoon, 1>(x + row * columns + column)[0]);
      const float m = load<Reuse::kSoon, 1>(mean + row)[0];
      weight += gradient * ((value - m) * load<Reuse::kSoon, 1>(rstd + row)[0]);
      bias += gradient;
    }
  }
  weights[threadIdx.x] = weight;
  biases[threadIdx.x] = bias;
  __syncthreads();
  if (threadIdx.x >= kColumns || column >= columns) return;
  for (int row = 1; row < kRows; ++row) {
    weight += weights[row * kColumns + threadIdx.x];
    bias += biases[row * kColumns + threadIdx.x];
  }
  store<Reuse::kSoon>(dweight + column, Vector<T, 1>{{from_float<T>(weight)}});
  store<Reuse::kSoon>(dbias + column, Vector<T, 1>{{from_float<T>(bias)}});
}

// Rows that begin on whole vectors, of kVectors for each thread. Leaves a row of sums per block.
template <typename T, int kWidth, int kVectors>
__global__ void __launch_bounds__(kLadderThreads, 2)
    layer_norm_registers(const T* dy, const T* x, const T* weight, const float* mean,
                         const float* rstd, T* dx, float* partial_weight, float* partial_bias,
                         long long rows, int columns) {
  const LayerNormRow<T> body{dy, x, weight, dx, columns};
  const float inverse = reciprocal_fast(static_cast<float>(columns));
  float weights[kVectors][kWidth], biases[kVectors][kWidth];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weights[k][i] = biases[k][i] = 0.0f;
  }
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const float m = load<Reuse::kSoon, 1>(mean + row)[0];
    const float r = load<Reuse::kSoon, 1>(rstd + row)[0];
    Vector<T, kWidth> gradients[kVectors], values[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c >= columns) continue;
      gradients[k] = load<Reuse::kSoon, kWidth>(dy + row * columns + c);
      values[k] = load<Reuse::kSoon, kWidth>(x + row * columns + c);
    }
    float along_one = 0.0f, along_x = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c >= columns) continue;
      const auto gamma = load<Reuse::kSoon, kWidth>(weight + c);
      body.project(gradients[k], values[k], gamma, m, r, along_one, along_x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        weights[k][i] += to_float(gradients[k][i]) * ((to_float(values[k][i]) - m) * r);
        biases[k][i] += to_float(gradients[k][i]);
      }
    }
    along_one = sum_threads<kLadderThreads>(along_one) * inverse;
    along_x = sum_threads<kLadderThreads>(along_x) * inverse;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c >= columns) continue;
      const auto gamma = load<Reuse::kSoon, kWidth>(weight + c);
      body.put(row * columns + c, gradients[k], values[k], gamma, m, r, along_one, along_x);
    }
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int c = own_column<kWidth>(k);
    if (c >= columns) continue;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const long long at = static_cast<long long>(blockIdx.x) * columns + c + i;
      store<Reuse::kSoon>(partial_weight + at, Vector<float, 1>{{weights[k][i]}});
      store<Reuse::kSoon>(partial_bias + at, Vector<float, 1>{{biases[k][i]}});
    }
  }
}
