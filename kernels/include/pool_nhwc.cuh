// Pooling windows over NHWC images: neighbours in memory are channels. What is done with a window is
// a rule (pool_rules.cuh).
//
// 1. A thread per output: 2-byte loads, though each warp asks for whole lines.
// 2. A thread per vector of channels of one output: every load is a vector, whatever the window. But
//    finding its place costs a thread more instructions than its window does.
// 3. A thread keeps its column and its channels and walks down a band of rows. What one row of a
//    window gives stays in registers where the next window shares it. The columns that windows share
//    meet in L1, rows that two bands share in L2: memory sees every element once.
// Backward gathers: a thread owns cells of kStride x kStride elements, so that which windows an
// element is in, and at which place, is known when it is compiled.
#pragma once

#include "memory.cuh"
#include "pool_max.cuh"
#include "pool_walk.cuh"

// What a thread walks down: `columns` of outputs or cells, in bands of rows.
template <int kWidth, int kThreads>
struct Walk {
  long long image;
  int column, channel;
  int first_row, end_row;
  bool active;

  __device__ Walk(int rows, int columns, int channels, int bands, int band_rows) {
    const int vectors = columns * channels / kWidth;
    const int across = (vectors + kThreads - 1) / kThreads;
    const int block = blockIdx.x;
    const int element = (block % across * kThreads + static_cast<int>(threadIdx.x)) * kWidth;
    column = element / channels;
    channel = element % channels;
    active = column < columns;
    image = block / across / bands;
    first_row = block / across % bands * band_rows;
    end_row = min(first_row + band_rows, rows);
  }
};

// What the windows of a thread's column have of one row of the image. `row`: the channels of the
// thread in the row's first pixel.
template <class Rule, int kBytes, int kKernel>
struct Across {
  using T = typename Rule::T;
  static constexpr int kWidth = elements_in<T, kBytes>();
  static constexpr int kStates = kWidth / Rule::kWindows;
  static constexpr int kAtOnce = kKernel <= 3 ? kKernel : 1;
  using Read = Windows<Rule, kStates>;

  static __device__ Read read(const T* row, int left, int width, int channels) {
    const T* const p = row + static_cast<long long>(left) * channels;
    const auto inside = [&](int c) { return left + c >= 0 && left + c < width; };
    Read windows;
#pragma unroll 1
    for (int first = 0; first < kKernel; first += kAtOnce) {
      Vector<T, kWidth> in[kAtOnce];
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
        in[c] = filled<T, kWidth>(Rule::outside());
        if (inside(first + c)) in[c] = load<Reuse::kSoon, kWidth>(p + (first + c) * channels);
      }
#pragma unroll
      for (int c = 0; c < kAtOnce; ++c) {
#pragma unroll
        for (int i = 0; i < kStates; ++i) {
          const typename Rule::Value value = Rule::lane(in[c], i);
          if (first + c == 0) {
            windows.of[i] = Rule::start_all(value, max(-left, 0));
          } else {
            Rule::take(windows.of[i], value, first + c);
          }
        }
      }
    }
    return windows;
  }
};

// Launched with images * bands * ceil(vectors of a row / kThreads) blocks. Operands are those of the
// rule, in its order.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_forward_nhwc(const typename Rule::T* x, int height, int width, int out_height,
                      int out_width, int channels, int padding, int bands, int band_rows,
                      Operands... operands) {
  using T = typename Rule::T;
  using Pooled = Paired<Rule, elements_in<T, kBytes>()>;
  using Row = Across<Pooled, kBytes, kKernel>;
  static_assert(Rule::kTakesAsIs, "a channel's own numbers would be a vector here");
  const Walk<Row::kWidth, kThreads> walk(out_height, out_width, channels, bands, band_rows);
  if (!walk.active) return;
  const Pooled rule{operands...};
  const int left = walk.column * kStride - padding;
  const T* const from = x + walk.image * height * width * channels + walk.channel;
  const auto read = [&](int row) {
    return Row::read(from + static_cast<long long>(row) * width * channels, left, width, channels);
  };
  const auto write = [&](int o, const typename Row::Read& windows) {
    const long long p = ((walk.image * out_height + o) * out_width + walk.column) * channels;
    rule.template store<kStores>(p + walk.channel, windows.of, 1.0f / (kKernel * kKernel));
  };
  walk_down<typename Row::Read, kKernel, kStride>(walk.first_row, walk.end_row, padding, height,
                                                  left, read, write);
}

// Launched like forward, over cells: ceil((height + padding) / kStride) rows of them. Cell m has the
// elements m * kStride - padding + [0, kStride), which begin in window m.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_backward_nhwc(typename Rule::T* dx, int height, int width, int out_height, int out_width,
                       int channels, int padding, int bands, int band_rows, Operands... operands) {
  using T = typename Rule::T;
  constexpr int kWidth = elements_in<T, kBytes>();
  constexpr int kMost = (kKernel + kStride - 1) / kStride;  // windows of an axis with one element
  constexpr bool kKeeps = kMost <= 2;                        // of all elements of a cell
  constexpr int kUnroll = kKeeps ? kMost : 1;
  using Loaded = typename Rule::template Loaded<kWidth>;
  static_assert(!Rule::kInput && !Rule::kSums, "a window alone decides");
  const int cells_down = (height + padding + kStride - 1) / kStride;
  const int cells_across = (width + padding + kStride - 1) / kStride;
  const Walk<kWidth, kThreads> walk(cells_down, cells_across, channels, bands, band_rows);
  if (!walk.active) return;
  const Rule rule{operands...};
  const long long row_of_windows = static_cast<long long>(out_width) * channels;
  const long long row_of_elements = static_cast<long long>(width) * channels;
  const long long from = walk.image * out_height * row_of_windows + walk.channel;
  const auto fetch = [&](int row, int column) {
    const bool inside = row >= 0 && row < out_height && column >= 0 && column < out_width;
    const long long p = from + row * row_of_windows + column * channels;
    return inside ? rule.template load<Reuse::kSoon, kWidth>(p) : Rule::template none<kWidth>();
  };
  const int first_column = walk.column * kStride - padding;
  T* const to = dx + walk.image * height * row_of_elements + first_column * channels + walk.channel;

  struct Row {
    Loaded of[kUnroll];
  };
  const auto fetch_row = [&](int row) {
    Row windows;
#pragma unroll
    for (int e = 0; e < kUnroll; ++e) windows.of[e] = fetch(row, walk.column - e);
    return windows;
  };
  Row rows[kUnroll];  // windows of cell rows m, m - 1
  if constexpr (kKeeps && kMost == 2) rows[0] = fetch_row(walk.first_row - 1);
  for (int m = walk.first_row; m < walk.end_row; ++m) {
    if constexpr (kKeeps) {
      if constexpr (kMost == 2) rows[1] = rows[0];
      rows[0] = fetch_row(m);
    }
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      const int row = m * kStride - padding + r;
      if (row < 0 || row >= height) continue;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        const int column = first_column + c;
        float sums[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[i] = 0.0f;
        // From the first window that has the element to the last.
#pragma unroll kUnroll
        for (int d = kMost - 1; d >= 0; --d) {
#pragma unroll kUnroll
          for (int e = kMost - 1; e >= 0; --e) {
            const int place_row = r + d * kStride, place_column = c + e * kStride;
            if (place_row >= kKernel || place_column >= kKernel) continue;
            Loaded loaded;
            if constexpr (kKeeps) {
              loaded = rows[d].of[e];
            } else {
              loaded = fetch(m - d, walk.column - e);
            }
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
              Rule::add(sums[i], Rule::window(loaded, i), place_row * kKernel + place_column,
                        1.0f / (kKernel * kKernel));
            }
          }
        }
        if (column >= 0 && column < width) {
          store<kStores>(to + row * row_of_elements + c * channels, from_floats<T>(sums));
        }
      }
    }
  }
}
