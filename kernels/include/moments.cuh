// Count, mean and squared deviations of what a thread holds, of a row, of a channel.
//
// Never E[x^2] - E[x]^2: of 4096 numbers about 4096 it leaves nothing in float32. What a thread
// holds is reduced to count, mean and squared deviations (Chan); these are merged over its steps
// and, in two sums, over the threads of the row.
//
// 1. Two passes over the values, the mean corrected by the mean of what it leaves, so that the
//    deviations of a constant row are exactly 0. Ragged rows are added up so.
// 2. One pass about a shift that is taken from the values themselves: two operations a value fewer,
//    and nothing unpacked waits for the mean. Whole vectors are added up so.
#pragma once

#include "math.cuh"
#include "pair.cuh"
#include "row.cuh"

struct Moments {
  float count = 0.0f;
  float mean = 0.0f;
  float deviations = 0.0f;  // sum of squares

  // Of kVectors vectors, `stride` apart, where the row has them.
  template <class Row, int kVectors>
  static __device__ Moments of(const Row& row, int first, int stride,
                               const typename Row::Values (&values)[kVectors]) {
    constexpr int kWidth = Row::kElements;
    if constexpr (Row::kWhole) return of_whole(row, first, stride, values);
    int count = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) count += row.elements(first + k * stride);
    return of_some<kWidth>(count, values, [&](int k, int i) {
      return row.holds(first + k * stride, i);
    });
  }

  // Of `count` values in two passes: of those in the vectors that holds(vector, element) says are
  // there. The others are 0.
  template <int kWidth, class Values, int kVectors, class Holds>
  static __device__ Moments of_some(int count, const Values (&values)[kVectors],
                                    const Holds& holds) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += values[k][i];
    }
    Moments moments;
    moments.count = static_cast<float>(count);
    const float share = reciprocal_fast(fmaxf(moments.count, 1.0f));
    const float mean = sum * share;
    float left = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float deviation = holds(k, i) ? values[k][i] - mean : 0.0f;
        left += deviation;
        squares += deviation * deviation;
      }
    }
    moments.mean = mean + left * share;
    moments.deviations = not_negative(squares - left * left * share);
    return moments;
  }

  // Of vectors that are there as a whole, in one pass: sums of what is left of their values, and of
  // its squares, beyond the mean of four. That is nowhere far: of n values, squares are at most n
  // times the squared deviations, and n / 16 times where one of the four stands out.
  template <class Row, int kVectors>
  static __device__ Moments of_whole(const Row& row, int first, int stride,
                                     const typename Row::Values (&values)[kVectors]) {
    constexpr int kWidth = Row::kElements;
    constexpr int kApart = kWidth / 4;
    const float shift = (values[0][0] + values[0][kApart] +
                         (values[0][2 * kApart] + values[0][3 * kApart])) * 0.25f;
    Pair sum{}, squares{};
    int vectors = 0;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const bool there = row.whole(first + k * stride);
      const float of_vector = there ? shift : 0.0f;  // a vector that is not there is 0
      vectors += there;
#pragma unroll
      for (int i = 0; i < kWidth; i += 2) {
        const Pair apart = pair_at(values[k], i) - of_vector;
        sum = sum + apart;
        squares = fused(apart, apart, squares);
      }
    }
    return about(shift, sum.first + sum.second, squares.first + squares.second, vectors * kWidth);
  }

  // Of `values` values, from sums of what is left of them beyond `shift`, and of its squares.
  static __device__ Moments about(float shift, float sum, float squares, int values) {
    Moments moments;
    moments.count = static_cast<float>(values);
    const float left = sum * reciprocal_fast(fmaxf(moments.count, 1.0f));
    moments.mean = shift + left;
    moments.deviations = not_negative(squares - sum * left);
    return moments;
  }

  __device__ void merge(const Moments& other) {
    if (count == 0.0f) {
      *this = other;
    } else {
      const float share = other.count * reciprocal_fast(count + other.count);
      const float apart = other.mean - mean;
      mean += apart * share;
      deviations += other.deviations + apart * apart * count * share;
      count += other.count;
    }
  }

  // Of the whole row: mean, and mean of the squared deviations, the same in every thread.
  template <class Reduction>
  __device__ void over(Reduction& reduction, float inverse_columns, float& row_mean,
                       float& variance) const {
    const float about = reduction.template of<Sum>(count * mean) * inverse_columns;
    const float apart = mean - about;
    float sums[2] = {count * apart, deviations + count * apart * apart};
    reduction.template all<Sum>(sums);
    const float left = sums[0] * inverse_columns;
    row_mean = about + left;
    variance = not_negative((sums[1] - sums[0] * left) * inverse_columns);
  }

  // NaN stays, which fmaxf would turn into 0.
  static __device__ float not_negative(float x) { return x < 0.0f ? 0.0f : x; }
};
