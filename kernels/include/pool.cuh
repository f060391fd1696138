// Pooling windows over planes (one channel of one image) by strips. What is done with a window is a
// rule (pool_rules.cuh).
//
// Strips, for windows that overlap by at most one row and tile the width (3x3 stride 2 padding 1,
// 2x2 stride 2): a thread owns one vector of columns and walks down the plane. Every element is
// loaded once, by the thread that needs it most; the one column that belongs to the window of a
// neighbour is shuffled, and the one row that two windows share stays in registers. A plane that is
// cut into bands, where there are too few planes to fill the machine, loads that row twice.
//
// Tiles, for every other window: see pool_tile.cuh.
#pragma once

#include "memory.cuh"
#include "pool_max.cuh"
#include "reduce.cuh"
#include "row.cuh"
#include "shared.cuh"

struct Planes {
  long long count;
  int height, width, out_height, out_width;
  int bands;      // of a plane
  int band_rows;  // output rows of a band
};

// What the thread of a strip has to do. Warps hold whole rows of strips where they can, so that
// neighbours are in the same warp: `lanes` of the 32 are used.
template <int kColumns>
struct Strip {
  long long plane;
  int column, lane, lanes;
  int band, first_row, end_row;  // of the band
  bool active;

  __device__ Strip(const Planes& planes, int lanes, int rows, int band_rows, int threads)
      : lane(threadIdx.x % kWarp), lanes(lanes) {
    const long long warp =
        static_cast<long long>(blockIdx.x) * (threads / kWarp) + threadIdx.x / kWarp;
    const int across = planes.width / kColumns;
    const long long strip = warp / planes.bands * lanes + lane;
    plane = strip / across;
    column = static_cast<int>(strip % across) * kColumns;
    active = lane < lanes && plane < planes.count;
    band = static_cast<int>(warp % planes.bands);
    first_row = band * band_rows;
    end_row = first_row + band_rows < rows ? first_row + band_rows : rows;
  }
};

template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
struct ForwardStrip {
  using T = typename Rule::T;
  static constexpr int kWidth = elements_in<T, kBytes>();
  static constexpr int kOut = kWidth / kStride;
  static constexpr int kPadding = kKernel - kStride;
  static_assert(kWidth % kStride == 0 && (kPadding == 0 || kPadding == 1), "see above");
  using Values = Packed<T, kWidth>;
  using Value = typename Rule::Value;
  static constexpr int kStates = kOut / Rule::kWindows;

  // What windows have of one of their rows.
  struct Across {
    typename Rule::State of[kStates];
  };

  static __device__ Values outside() { return Values::filled(Rule::outside()); }

  // `first`: the strip begins the row, so that the column before it is padding.
  static __device__ Across across(const Values& row, Value before, bool first) {
    Across windows;
#pragma unroll
    for (int o = 0; o < kStates; ++o) {
      const int left = o * Rule::kWindows * kStride - kPadding;
      const bool outer = o == 0 && kPadding;
      windows.of[o] = Rule::start(Rule::template pick<kStride>(row, before, left), outer && first);
#pragma unroll
      for (int c = 1; c < kKernel; ++c) {
        Rule::take(windows.of[o], Rule::template pick<kStride>(row, before, left + c), c);
      }
    }
    return windows;
  }

  static __device__ void run(const Rule& any, const T* x, const Planes& planes, int lanes) {
    const Strip<kWidth> strip(planes, lanes, planes.out_height, planes.band_rows, kThreads);
    const auto& rule = any.of(strip.active ? strip.plane : 0);
    const T* const from = x + strip.plane * planes.height * planes.width + strip.column;
    const long long to =
        strip.plane * planes.out_height * planes.out_width + strip.column / kStride;
    const bool first = strip.column == 0;

    const auto inside = [&](int row) { return strip.active && row >= 0 && row < planes.height; };
    const auto fetch = [&](int row) {
      const T* p = from + static_cast<long long>(row) * planes.width;
      return inside(row) ? Values::of(load<Reuse::kNever, kWidth>(p)) : outside();
    };
    const auto taken = [&](const Values& values, int row) {
      if constexpr (Rule::kTakesAsIs) return values;
      return inside(row) ? rule.taken(values) : values;
    };
    // The element before the strip: the neighbour's last one, unless that is in another warp.
    const auto before = [&](const Values& values, int row) {
      if constexpr (kPadding == 0) return Value{};
      Value value = __shfl_up_sync(kWholeWarp, Rule::last(values), 1);
      if (first) return Rule::last(outside());
      if (strip.lane == 0 && inside(row)) {
        const T* p = from + static_cast<long long>(row) * planes.width - 1;
        value = rule.taken(Rule::alone(load<Reuse::kNever, 1>(p)[0]));
      }
      return value;
    };

    Across shared_row{};  // the last row of the window above
    if constexpr (kPadding) {
      const int row = strip.first_row * kStride - 1;
      const Values values = taken(fetch(row), row);
      shared_row = across(values, before(values, row), first);
    }
    Values next[kStride];
#pragma unroll
    for (int r = 0; r < kStride; ++r) next[r] = fetch(strip.first_row * kStride + r);

    for (int o = strip.first_row; o < strip.end_row; ++o) {
      Values rows[kStride];
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        rows[r] = taken(next[r], o * kStride + r);
        next[r] = o + 1 < strip.end_row ? fetch((o + 1) * kStride + r) : outside();
      }
      Across windows = shared_row;
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        const Across here = across(rows[r], before(rows[r], o * kStride + r), first);
        const int place = (r + kPadding) * kKernel;
#pragma unroll
        for (int i = 0; i < kStates; ++i) {
          if (r == 0 && (kPadding == 0 || o == 0)) {  // the first row that is not padding
            windows.of[i] = here.of[i];
            Rule::move(windows.of[i], place);
          } else {
            Rule::merge(windows.of[i], here.of[i], place);
          }
        }
        if (r == kStride - 1) shared_row = here;
      }
      if (!strip.active) continue;
      rule.template store<kStores>(to + static_cast<long long>(o) * planes.out_width, windows.of,
                                   1.0f / (kKernel * kKernel));
    }
  }
};

// dx of a strip: each of its elements gathers the windows that it is in, in their order. No
// atomics, and no pass that sets dx to zero first.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
struct BackwardStrip {
  using T = typename Rule::T;
  static constexpr int kWidth = elements_in<T, kBytes>();
  static constexpr int kOut = kWidth / kStride;
  static constexpr int kPadding = kKernel - kStride;
  using Loaded = typename Rule::template Loaded<kOut>;
  using Values = Packed<T, kWidth>;

  // One row of windows above the strip, and the first window of the next strip.
  struct Windows {
    typename Rule::Window of[kOut + 1];
  };

  static __device__ void run(const Rule& rule, T* dx, const Planes& planes, int lanes) {
    const int rows = (planes.height + kStride - 1) / kStride;
    const Strip<kWidth> strip(planes, lanes, rows, planes.band_rows, kThreads);
    const long long from =
        strip.plane * planes.out_height * planes.out_width + strip.column / kStride;
    const long long to = strip.plane * planes.height * planes.width + strip.column;
    const bool last = strip.column + kWidth == planes.width;

    const auto inside = [&](int row) { return strip.active && row < planes.out_height; };
    const auto fetch = [&](int row) {
      const long long p = from + static_cast<long long>(row) * planes.out_width;
      Loaded loaded = Rule::template none<kOut>();
      if (inside(row)) loaded = rule.template load<Reuse::kNever, kOut>(p);
      return loaded;
    };
    const auto windows = [&](const Loaded& loaded, int row) {
      Windows w;
#pragma unroll
      for (int i = 0; i < kOut; ++i) w.of[i] = Rule::window(loaded, i);
      w.of[kOut] = Rule::nothing();
      if constexpr (kPadding) {
        w.of[kOut] = Rule::below(w.of[0]);
        if (last) {
          w.of[kOut] = Rule::nothing();
        } else if (strip.lane == strip.lanes - 1 && inside(row)) {
          const long long p = from + static_cast<long long>(row) * planes.out_width + kOut;
          w.of[kOut] = Rule::window(rule.template load<Reuse::kNever, 1>(p), 0);
        }
      }
      return w;
    };
    float total = 0.0f;
    const auto writes = [&](int row) { return strip.active && row < planes.height; };
    const auto at = [&](int row) { return to + static_cast<long long>(row) * planes.width; };

    Loaded ahead = fetch(strip.first_row);
    Windows now = windows(ahead, strip.first_row);
    if (strip.first_row + 1 < strip.end_row + kPadding) ahead = fetch(strip.first_row + 1);
    for (int m = strip.first_row; m < strip.end_row; ++m) {
      Values inputs[kStride];
      if constexpr (Rule::kInput) {
#pragma unroll
        for (int r = 0; r < kStride; ++r) {
          if (writes(m * kStride + r)) {
            inputs[r] = Values::of(load<Reuse::kNever, kWidth>(rule.x + at(m * kStride + r)));
          }
        }
      }
      const Windows below = windows(ahead, m + 1);
      if (m + 2 < strip.end_row + kPadding) ahead = fetch(m + 2);
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        float sums[kWidth];
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          sums[c] = 0.0f;
          gather(sums[c], now, r + kPadding, c);
          if (kPadding && r == kStride - 1) gather(sums[c], below, 0, c);
          if constexpr (Rule::kInput) sums[c] *= inputs[r][c];
        }
        if (writes(m * kStride + r)) {
          store<kStores>(dx + at(m * kStride + r), Values::rounded(sums).vector());
        }
      }
      if constexpr (Rule::kSums) {
#pragma unroll
        for (int i = 0; i < kOut; ++i) total += Rule::counted(now.of[i]);
      }
      now = below;
    }
    if constexpr (Rule::kSums) write_total(rule, strip, planes, total);
  }

  // Column c of the strip is in window c / kStride, and in the next one where they overlap.
  static __device__ void gather(float& sum, const Windows& w, int row, int c) {
    constexpr float kWeight = 1.0f / (kKernel * kKernel);
    const int own = c / kStride;
    const int place = row * kKernel + c % kStride + kPadding;
    Rule::add(sum, w.of[own], place, kWeight);
    if (kPadding && c % kStride == kStride - 1) {
      Rule::add(sum, w.of[own + 1], row * kKernel, kWeight);
    }
  }

  // Of the strips of a plane, which are neighbours in one warp.
  static __device__ void write_total(const Rule& rule, const Strip<kWidth>& strip,
                                     const Planes& planes, float total) {
    const int across = planes.width / kWidth;
    const int place = strip.column / kWidth;
    for (int step = 1; step < across; step *= 2) {
      const float other = __shfl_down_sync(kWholeWarp, total, step);
      if (place % (2 * step) == 0 && place + step < across) total += other;
    }
    if (strip.active && place == 0) rule.write(strip.plane, strip.band, planes.bands, total);
  }
};

// On a multiprocessor at least: 640 threads have the bytes in flight that a B200 wants.
constexpr int kBlocksOfStrips = 5;

// Operands are those of the rule, in its order; T is the type of x or dx.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads, kBlocksOfStrips)
    pool_forward_strips(const typename Rule::T* x, long long planes, int height, int width,
                        int out_height, int out_width, int bands, int band_rows, int lanes,
                        Operands... operands) {
  using Pooled = Paired<Rule, elements_in<typename Rule::T, kBytes>() / kStride>;
  ForwardStrip<Pooled, kBytes, kKernel, kStride, kStores, kThreads>::run(
      Pooled{operands...}, x, {planes, height, width, out_height, out_width, bands, band_rows},
      lanes);
}

template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          typename... Operands>
__global__ void __launch_bounds__(kThreads, kBlocksOfStrips)
    pool_backward_strips(typename Rule::T* dx, long long planes, int height, int width,
                         int out_height, int out_width, int bands, int band_rows, int lanes,
                         Operands... operands) {
  BackwardStrip<Rule, kBytes, kKernel, kStride, kStores, kThreads>::run(
      Rule{operands...}, dx, {planes, height, width, out_height, out_width, bands, band_rows},
      lanes);
}
