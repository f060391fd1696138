// Codes of rows, each with a scale of its own: its largest magnitude over the largest code. The walk
// over rows is in row_map.cuh, how rows are cut into vectors in row.cuh.
#pragma once

#include "convert.cuh"
#include "row_map.cuh"

// Codes of the vector that `row` cut from a matrix of T; codes are cut alike.
template <Reuse kStores, class Span, int kCodes>
__device__ void store_codes(const Span& row, unsigned char* q, int vector,
                            const Vector<unsigned char, kCodes>& codes) {
  unsigned char* const p = q + (row.start + row.column(vector)) * kCodes / Span::kElements;
  if (row.whole(vector)) {
    ::store<kStores>(p, codes);
  } else if constexpr (kCodes == Span::kElements) {
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      if (row.holds(vector, i)) ::store<kStores>(p + i, Vector<unsigned char, 1>{{codes[i]}});
    }
  }
}

template <typename T, class Plan, Reuse kStores, class Format>
struct QuantizeRows : OneMatrix<T, Plan> {
  using typename OneMatrix<T, Plan>::Kept;
  using typename OneMatrix<T, Plan>::Span;
  static constexpr int kWidth = OneMatrix<T, Plan>::kWidth;
  unsigned char* q;
  float* scales;
  float largest;   // code
  float smallest;  // scale: its reciprocal is finite

  struct State {
    unsigned int magnitude = 0;  // as bits: NaN is the largest
  };
  struct Result {
    float scale, reciprocal;
    __device__ float positive() const { return float_of(bits_of(scale) & kMagnitude); }
  };

  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        state.magnitude = larger_magnitude(state.magnitude, values[k][i]);
      }
    }
  }

  // A comparison with NaN is false: it stays.
  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    const float amax = reduction.template of<Maximum>(float_of(state.magnitude));
    const float found = amax / largest;
    const float scale = found < smallest ? smallest : found;
    return {scale, 1.0f / scale};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float scaled[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) scaled[i] = values[i] * result.reciprocal;
    store_codes<kStores>(cut.written, q, v, encode<Format>(scaled));
  }

  __device__ void finish(long long n, const Result& result) const {
    store<kStores>(scales + n, Vector<float, 1>{{result.scale}});
  }

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      Nothing early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};
