// Pooling windows over NHWC images: neighbours in memory are channels. What is done with a window is
// a rule (pool_rules.cuh), where it is an axis (pool_axis.cuh).
//
// 1. A thread per output: 2-byte loads, each warp whole lines.
// 2. A thread per vector of channels of one output: its window is kKernel^2 vectors, all asked for
//    before the first is compared; every load is a vector, whatever the window.
// 3. Windows overlap: 3x3 stride 2 asks for every element 2.25 times. A block is kRows rows of
//    neighbouring outputs, so that most of these meet in L1, and the rest, rows that two blocks
//    share, in L2: memory sees one.
// Backward gathers in the same way: a vector of dx adds the windows that it is in, in their order.
#pragma once

#include "memory.cuh"
#include "pool_axis.cuh"
#include "pool_rules.cuh"

// The vector of one thread, of images of `height` rows of width * channels elements.
template <int kWidth, int kThreads>
struct Pixel {
  static constexpr int kRows = 4;
  static constexpr int kVectors = kThreads / kRows;  // of a row, in one block
  long long image;
  int row, column, channel;
  bool active;

  __device__ Pixel(int height, int width, int channels) {
    const int vectors = width * channels / kWidth;
    const int across = (vectors + kVectors - 1) / kVectors;
    const int down = (height + kRows - 1) / kRows;
    const int block = blockIdx.x;
    const int vector = block % across * kVectors + threadIdx.x % kVectors;
    image = block / across / down;
    row = block / across % down * kRows + threadIdx.x / kVectors;
    column = vector * kWidth / channels;
    channel = vector * kWidth % channels;
    active = row < height && vector < vectors;
  }
  __device__ long long at(int height, int width, int channels) const {
    return at(height, width, channels, row, column);
  }
  __device__ long long at(int height, int width, int channels, int row, int column) const {
    return ((image * height + row) * width + column) * channels + channel;
  }
};

// Launched with images * ceil(out_height / kRows) * ceil(vectors of a row / kVectors) blocks.
// Operands are those of the rule, in its order.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_forward_nhwc(const typename Rule::T* x, int height, int width, int out_height,
                      int out_width, int channels, int padding, Operands... operands) {
  using T = typename Rule::T;
  constexpr int kWidth = elements_in<T, kBytes>();
  constexpr int kAtOnce = kKernel <= 3 ? kKernel : 1;  // rows, and vectors of a row
  static_assert(Rule::kTakesAsIs, "a channel's own numbers would be a vector here");
  const Pixel<kWidth, kThreads> pixel(out_height, out_width, channels);
  if (!pixel.active) return;
  const Rule rule{operands...};
  const int top = pixel.row * kStride - padding, left = pixel.column * kStride - padding;

  // Beyond the image nothing wins and nothing is added: no branch.
  Vector<T, kWidth> outside;
  typename Rule::State state[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    outside[i] = from_float<T>(Rule::outside());
    state[i] = Rule::empty(max(-top, 0) * kKernel + max(-left, 0));
  }
#pragma unroll kAtOnce
  for (int r = 0; r < kKernel; ++r) {
    const bool row_inside = top + r >= 0 && top + r < height;
#pragma unroll 1
    for (int first = 0; first < kKernel; first += kAtOnce) {
      Vector<T, kWidth> in[kAtOnce];
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        const int column = left + first + c;
        const bool inside = row_inside && column >= 0 && column < width;
        in[c] = outside;
        if (inside) {
          in[c] = load<Reuse::kSoon, kWidth>(x + pixel.at(height, width, channels, top + r, column));
        }
      }
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          Rule::take(state[i], to_float(in[c][i]), r * kKernel + first + c);
        }
      }
    }
  }
  rule.template store<kStores>(pixel.at(out_height, out_width, channels), state,
                               1.0f / (kKernel * kKernel));
}

// Launched like forward, over dx.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_backward_nhwc(typename Rule::T* dx, int height, int width, int out_height, int out_width,
                       int channels, int padding, Operands... operands) {
  using T = typename Rule::T;
  constexpr int kWidth = elements_in<T, kBytes>();
  constexpr int kMost = (kKernel + kStride - 1) / kStride;  // windows of an axis with one element
  constexpr int kAtOnce = kMost <= 2 ? kMost : 1;
  static_assert(!Rule::kInput && !Rule::kSums, "a window alone decides");
  const Pixel<kWidth, kThreads> pixel(height, width, channels);
  if (!pixel.active) return;
  const Rule rule{operands...};
  const FixedAxis<kKernel, kStride> rows{height, out_height, padding};
  const FixedAxis<kKernel, kStride> columns{width, out_width, padding};
  const int above = rows.first(pixel.row), below = rows.after(pixel.row);
  const int left = columns.first(pixel.column), right = columns.after(pixel.column);

  float sums[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[i] = 0.0f;
#pragma unroll kAtOnce
  for (int m = 0; m < kMost; ++m) {
#pragma unroll kAtOnce
    for (int n = 0; n < kMost; ++n) {
      const int row = above + m, column = left + n;
      auto loaded = Rule::template none<kWidth>();
      if (row < below && column < right) {
        const long long p = pixel.at(out_height, out_width, channels, row, column);
        loaded = rule.template load<Reuse::kSoon, kWidth>(p);
      }
      const int place =
          (pixel.row - rows.begin(row)) * kKernel + pixel.column - columns.begin(column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        Rule::add(sums[i], Rule::window(loaded, i), place, 1.0f / (kKernel * kKernel));
      }
    }
  }
  store<kStores>(dx + pixel.at(height, width, channels), from_floats<T>(sums));
}
