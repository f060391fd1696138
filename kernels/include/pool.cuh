// Max-pooling windows over planes (one channel of one image): the rule, and the two schedules.
//
// Strips, for windows that overlap by at most one row and tile the width (3x3 stride 2 padding 1,
// 2x2 stride 2): a thread owns one vector of columns and walks down the plane. Every element is
// loaded once, by the thread that needs it most; the one column that belongs to the window of a
// neighbour is shuffled, and the one row that two windows share stays in registers. A plane that is
// cut into bands, where there are too few planes to fill the machine, loads that row twice.
//
// Tiles, for every other window: a block copies whole planes, or a band of rows of one plane, to
// shared memory, as one aligned run; windows overlap there. A band loads kernel - stride rows that
// its neighbour loads too. Rows so long that one band does not fit are read through L1 (kStaged
// false), every element once per window.
#pragma once

#include "memory.cuh"
#include "reduce.cuh"
#include "row.cuh"
#include "shared.cuh"

// PyTorch's rule: a later element must be larger to win, and NaN always wins.
__device__ inline void take_larger(float& best, int& place, float value, int at) {
  if (value > best || value != value) {
    best = value;
    place = at;
  }
}

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
  int first_row, end_row;  // of the band
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
    first_row = static_cast<int>(warp % planes.bands) * band_rows;
    end_row = first_row + band_rows < rows ? first_row + band_rows : rows;
  }
};

template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
struct ForwardStrip {
  static constexpr int kWidth = elements_in<T, kBytes>();
  static constexpr int kOut = kWidth / kStride;
  static constexpr int kPadding = kKernel - kStride;
  static_assert(kWidth % kStride == 0 && (kPadding == 0 || kPadding == 1), "see above");
  using Values = Packed<T, kWidth>;

  // The best of each window in one of its rows.
  struct Best {
    float value[kOut];
    int place[kOut];
  };

  static __device__ Values outside() {
    float values[kWidth];
#pragma unroll
    for (float& value : values) value = Maximum::identity();
    return Values::rounded(values);
  }

  // `first`: the strip begins the row, so that the column before it is padding.
  static __device__ Best across(const Values& row, float before, bool first) {
    Best best;
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      best.value[o] = o == 0 && kPadding ? before : row[o * kStride - kPadding];
      best.place[o] = o == 0 && kPadding && first ? 1 : 0;
#pragma unroll
      for (int c = 1; c < kKernel; ++c) {
        take_larger(best.value[o], best.place[o], row[o * kStride - kPadding + c], c);
      }
    }
    return best;
  }

  static __device__ void run(const T* x, T* y, unsigned char* offset, const Planes& planes,
                             int lanes) {
    const Strip<kWidth> strip(planes, lanes, planes.out_height, planes.band_rows, kThreads);
    const T* const from = x + strip.plane * planes.height * planes.width + strip.column;
    const long long to =
        strip.plane * planes.out_height * planes.out_width + strip.column / kStride;
    const bool first = strip.column == 0;

    const auto fetch = [&](int row) {
      const bool inside = strip.active && row >= 0 && row < planes.height;
      const T* p = from + static_cast<long long>(row) * planes.width;
      return inside ? Values::of(load<Reuse::kNever, kWidth>(p)) : outside();
    };
    // The element before the strip: the neighbour's last one, unless that is in another warp.
    const auto before = [&](const Values& values, int row) {
      if constexpr (kPadding == 0) return 0.0f;
      float value = __shfl_up_sync(kWholeWarp, values[kWidth - 1], 1);
      if (first) return Maximum::identity();
      if (strip.lane == 0 && strip.active && row >= 0 && row < planes.height) {
        value = to_float(
            load<Reuse::kNever, 1>(from + static_cast<long long>(row) * planes.width - 1)[0]);
      }
      return value;
    };

    Best shared_row{};  // the last row of the window above
    if constexpr (kPadding) {
      const int row = strip.first_row * kStride - 1;
      const Values values = fetch(row);
      shared_row = across(values, before(values, row), first);
    }
    Values next[kStride];
#pragma unroll
    for (int r = 0; r < kStride; ++r) next[r] = fetch(strip.first_row * kStride + r);

    for (int o = strip.first_row; o < strip.end_row; ++o) {
      Values rows[kStride];
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        rows[r] = next[r];
        next[r] = o + 1 < strip.end_row ? fetch((o + 1) * kStride + r) : outside();
      }
      Best best = shared_row;
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
        const Best here = across(rows[r], before(rows[r], o * kStride + r), first);
#pragma unroll
        for (int i = 0; i < kOut; ++i) {
          const int at = (r + kPadding) * kKernel + here.place[i];
          if (r == 0 && (kPadding == 0 || o == 0)) {  // the first row that is not padding
            best.value[i] = here.value[i];
            best.place[i] = at;
          } else {
            take_larger(best.value[i], best.place[i], here.value[i], at);
          }
        }
        if (r == kStride - 1) shared_row = here;
      }
      if (!strip.active) continue;
      const long long p = to + static_cast<long long>(o) * planes.out_width;
      Vector<T, kOut> maxima;
      Vector<unsigned char, kOut> places;
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        maxima[i] = from_float<T>(best.value[i]);
        places[i] = static_cast<unsigned char>(best.place[i]);
      }
      store<kStores>(y + p, maxima);
      store<kStores>(offset + p, places);
    }
  }
};

// dx of a strip: each of its elements gathers the windows that point to it, in their order. No
// atomics, and no pass that sets dx to zero first.
template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
struct BackwardStrip {
  static constexpr int kWidth = elements_in<T, kBytes>();
  static constexpr int kOut = kWidth / kStride;
  static constexpr int kPadding = kKernel - kStride;
  static constexpr int kNone = 255;  // a place no window has: kernels reach 15 x 15

  // One row of windows above the strip, and the first window of the next strip.
  struct Windows {
    float dy[kOut + 1];
    int place[kOut + 1];
  };
  struct Loaded {
    Vector<T, kOut> dy;
    Vector<unsigned char, kOut> place;
  };

  static __device__ void run(const T* dy, const unsigned char* offset, T* dx, const Planes& planes,
                             int lanes) {
    const int rows = (planes.height + kStride - 1) / kStride;
    const Strip<kWidth> strip(planes, lanes, rows, planes.band_rows, kThreads);
    const long long from =
        strip.plane * planes.out_height * planes.out_width + strip.column / kStride;
    T* const to = dx + strip.plane * planes.height * planes.width + strip.column;
    const bool last = strip.column + kWidth == planes.width;

    const auto inside = [&](int row) { return strip.active && row < planes.out_height; };
    const auto fetch = [&](int row) {
      Loaded loaded;
      const long long p = from + static_cast<long long>(row) * planes.out_width;
      if (inside(row)) {
        loaded.dy = load<Reuse::kNever, kOut>(dy + p);
        loaded.place = load<Reuse::kNever, kOut>(offset + p);
      } else {
#pragma unroll
        for (int i = 0; i < kOut; ++i) {
          loaded.dy[i] = from_float<T>(0.0f);
          loaded.place[i] = kNone;
        }
      }
      return loaded;
    };
    const auto windows = [&](const Loaded& loaded, int row) {
      Windows w;
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        w.dy[i] = to_float(loaded.dy[i]);
        w.place[i] = loaded.place[i];
      }
      w.dy[kOut] = 0.0f;
      w.place[kOut] = kNone;
      if constexpr (kPadding) {
        w.dy[kOut] = __shfl_down_sync(kWholeWarp, w.dy[0], 1);
        w.place[kOut] = __shfl_down_sync(kWholeWarp, w.place[0], 1);
        if (last) {
          w.place[kOut] = kNone;
        } else if (strip.lane == strip.lanes - 1 && inside(row)) {
          const long long p = from + static_cast<long long>(row) * planes.out_width + kOut;
          w.dy[kOut] = to_float(load<Reuse::kNever, 1>(dy + p)[0]);
          w.place[kOut] = load<Reuse::kNever, 1>(offset + p)[0];
        }
      }
      return w;
    };

    Loaded ahead = fetch(strip.first_row);
    Windows now = windows(ahead, strip.first_row);
    if (strip.first_row + 1 < strip.end_row + kPadding) ahead = fetch(strip.first_row + 1);
    for (int m = strip.first_row; m < strip.end_row; ++m) {
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
        }
        const int row = m * kStride + r;
        if (strip.active && row < planes.height) {
          store<kStores>(to + static_cast<long long>(row) * planes.width,
                         Packed<T, kWidth>::rounded(sums).vector());
        }
      }
      now = below;
    }
  }

  // Column c of the strip is in window c / kStride, and in the next one where they overlap.
  static __device__ void gather(float& sum, const Windows& w, int row, int c) {
    const int own = c / kStride;
    const int place = row * kKernel + c % kStride + kPadding;
    if (w.place[own] == place) sum += w.dy[own];
    if (kPadding && c % kStride == kStride - 1 && w.place[own + 1] == row * kKernel) {
      sum += w.dy[own + 1];
    }
  }
};
