// RMSNorm forward, step by step, alone or with a residual add in front of it: ladder.cuh has the
// first three steps. row_rms.cuh has the formula, and the last one.
#pragma once

#include "ladder.cuh"
#include "math.cuh"

template <typename T>
struct RmsRow {
  const T* x;
  const T* residual;
  const T* weight;
  T* h;
  T* y;
  float* rstd;
  int columns;
  float eps;

  // h at an element, and stored there: x, or x + residual rounded as the next layer reads it.
  template <bool kResidual, int kWidth>
  __device__ Vector<T, kWidth> taken(long long at) const {
    const auto values = load<Reuse::kSoon, kWidth>(x + at);
    if constexpr (!kResidual) return values;
    const auto added = load<Reuse::kSoon, kWidth>(residual + at);
    float sums[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = to_float(values[i]) + to_float(added[i]);
    const auto rounded = from_floats<T>(sums);
    store<Reuse::kSoon>(h + at, rounded);
    return rounded;
  }

  template <int kWidth>
  static __device__ float squares(const Vector<T, kWidth>& values, float sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += to_float(values[i]) * to_float(values[i]);
    return sum;
  }

  __device__ float reciprocal_deviation(float sum) const {
    return rsqrt_fast(sum * reciprocal_fast(static_cast<float>(columns)) + eps);
  }

  template <int kWidth>
  __device__ void put(long long at, int column, const Vector<T, kWidth>& values, float r) const {
    const auto gamma = load<Reuse::kSoon, kWidth>(weight + column);
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = to_float(values[i]) * r * to_float(gamma[i]);
    store<Reuse::kSoon>(y + at, from_floats<T>(out));
  }

  // Twice over the row. A thread reads back the h that it wrote itself.
  template <class Team, bool kResidual, int kWidth>
  __device__ void twice(long long row) const {
    const long long start = row * columns;
    constexpr int kStep = Team::kStride * kWidth;
    float sum = 0.0f;
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      sum = squares(taken<kResidual, kWidth>(start + c), sum);
    }
    const float r = reciprocal_deviation(Team::template all<Sum>(sum));
    for (int c = Team::first() * kWidth; c < columns; c += kStep) {
      put(start + c, c, load<Reuse::kSoon, kWidth>((kResidual ? h : x) + start + c), r);
    }
    if (Team::first() == 0) store<Reuse::kSoon>(rstd + row, Vector<float, 1>{{r}});
  }

  // Once: kVectors of the row stay with each thread; warps reduce by shuffles, with one barrier.
  template <bool kResidual, int kWidth, int kVectors>
  __device__ void once(long long row) const {
    const long long start = row * columns;
    Vector<T, kWidth> kept[kVectors];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c < columns) kept[k] = taken<kResidual, kWidth>(start + c);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (own_column<kWidth>(k) < columns) sum = squares(kept[k], sum);
    }
    const float r = reciprocal_deviation(sum_threads<kLadderThreads>(sum));
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int c = own_column<kWidth>(k);
      if (c < columns) put(start + c, c, kept[k], r);
    }
    if (threadIdx.x == 0) store<Reuse::kSoon>(rstd + row, Vector<float, 1>{{r}});
  }

  template <int kWidth>
  __device__ bool by_vectors() const {
    return whole_vectors<kWidth>(columns, x, residual, weight, h, y);
  }
};

template <class Team, bool kResidual, int kWidth, typename T>
__device__ void rms_twice(const RmsRow<T>& body, long long rows) {
  const long long row = Team::row();
  if (row >= rows) return;
  if (body.template by_vectors<kWidth>()) {
    body.template twice<Team, kResidual, kWidth>(row);
  } else {
    body.template twice<Team, kResidual, 1>(row);
  }
}

template <bool kResidual, int kWidth, int kVectors, typename T>
__device__ void rms_once(const RmsRow<T>& body) {
  if (body.template by_vectors<kWidth>()) {
    body.template once<kResidual, kWidth, kVectors>(blockIdx.x);
  } else {
    body.template twice<OneBlock, kResidual, 1>(blockIdx.x);
  }
}
