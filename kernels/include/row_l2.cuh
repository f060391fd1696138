// Rows divided by their length.
//
//   forward    y = x * r                    r = 1 / max(norm, eps)     norm = sqrt(sum(x^2))
//   backward   dx = (dy - x * dot) * r      dot = r^2 * sum(dy * x), or 0 where norm < eps
#pragma once

#include "math.cuh"
#include "row_map.cuh"

template <typename T, class Plan, Reuse kStores>
struct L2Forward : OneMatrix<T, Plan> {
  using typename OneMatrix<T, Plan>::Kept;
  using typename OneMatrix<T, Plan>::Span;
  static constexpr int kWidth = OneMatrix<T, Plan>::kWidth;
  T* y;
  float* norm;
  float eps;

  struct State {
    float squares = 0.0f;
  };
  struct Result {
    float norm, reciprocal;
    __device__ float positive() const { return norm; }
  };

  // In float32 before squaring: 300^2 is infinite in float16.
  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) state.squares += values[k][i] * values[k][i];
    }
  }

  // NaN is not below eps, and stays.
  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    const float norm = sqrt_fast(reduction.template of<Sum>(state.squares));
    return {norm, reciprocal_fast(norm < eps ? eps : norm)};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = values[i] * result.reciprocal;
    cut.written.template store<kStores>(y, v, Kept::rounded(out));
  }

  __device__ void finish(long long n, const Result& result) const {
    store<kStores>(norm + n, Vector<float, 1>{{result.norm}});
  }

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      Nothing early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};

template <typename T, class Plan, Reuse kStores>
struct L2Backward {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Span = Cut<T, kWidth, Plan::kRagged>;
  using Loaded = Two<T, kWidth>;  // dy and x
  using Kept = Loaded;
  const T* dy;
  const T* x;
  const float* norm;
  T* dx;
  long long rows;
  int columns;
  int shift;
  float eps;

  struct State {
    float sum = 0.0f;
  };
  struct Result {
    float dot, reciprocal;
    __device__ float positive() const { return reciprocal; }
  };

  __device__ Span cut(long long n) const {
    return whole_row<T, kWidth, Plan::kRagged>(n, rows, columns, shift);
  }
  __device__ float early(long long n) const {
    return n < rows ? ::load<Reuse::kSoon, 1>(norm + n)[0] : 0.0f;
  }
  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return {cut.read.template load<kReuse>(dy, v), cut.read.template load<kReuse>(x, v)};
  }
  __device__ const Kept& keep(const Loaded& loaded) const { return loaded; }

  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) state.sum += values[k].a[i] * values[k].b[i];
    }
  }

  // A row shorter than eps is only scaled. One factor at a time: 1e24, the square of the largest
  // reciprocal, times a large sum would overflow where their order does not.
  template <class Reduction>
  __device__ Result reduce(const State& state, float norm, Reduction& reduction) const {
    const float sum = reduction.template of<Sum>(state.sum);
    const float reciprocal = reciprocal_fast(norm < eps ? eps : norm);
    return {norm < eps ? 0.0f : sum * reciprocal * reciprocal, reciprocal};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      out[i] = (values.a[i] - values.b[i] * result.dot) * result.reciprocal;
    }
    cut.written.template store<kStores>(dx, v, Packed<T, kWidth>::rounded(out));
  }
  __device__ void finish(long long, const Result&) const {}

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      float early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};
