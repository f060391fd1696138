// What may become of a norm's y instead of being stored: codes. They are of y as its dtype would
// store it, so that the fused kernel and its chain agree; scales as in quantize.cuh.
#pragma once

#include "quantize.cuh"
#include "quantize_row.cuh"
#include "row_rms.cuh"

struct CodesByTensor {
  static constexpr bool kSavesRstd = false;
  unsigned char* q;
  GivenScale scale;

  template <Reuse kStores, class Span, class Values>
  __device__ void write(const Span& row, int vector, const Values& values) const {
    float scaled[Span::kElements];
#pragma unroll
    for (int i = 0; i < Span::kElements; ++i) scaled[i] = values[i] * scale.reciprocal;
    store_codes<kStores>(row, q, vector, encode<E4m3>(scaled));
  }
};

// Rows begin on vectors: a block is whole, in neighbouring lanes that are all here.
struct CodesByNvBlock {
  static constexpr bool kSavesRstd = false;
  unsigned char* q;
  NvScales scales;

  template <Reuse kStores, class Span, class Values>
  __device__ void write(const Span& row, int vector, const Values& values) const {
    float scaled[Span::kElements];
#pragma unroll
    for (int i = 0; i < Span::kElements; ++i) scaled[i] = values[i];
    const float r = scales.find<kStores>(scaled, row.start + row.column(vector), row.whole(vector));
#pragma unroll
    for (int i = 0; i < Span::kElements; ++i) scaled[i] *= r;
    store_codes<kStores>(row, q, vector, encode<E2m1>(scaled));
  }
};
