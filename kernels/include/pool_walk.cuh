// Windows one below the other, by a thread that walks down them: what one row of a window gives stays
// in registers where the next window shares it.
#pragma once

#include "pool_rules.cuh"

// N States of windows beside each other, of some of their rows.
template <class Rule, int N>
struct Windows {
  typename Rule::State of[N];

  __device__ void clear(int place) {
#pragma unroll
    for (int i = 0; i < N; ++i) of[i] = Rule::empty(place);
  }
  // The windows so far and their next row, which begins at `place`.
  __device__ void merge(const Windows& row, int place) {
#pragma unroll
    for (int i = 0; i < N; ++i) Rule::merge(of[i], row.of[i], place);
  }
  // Their first row begins at `place`.
  __device__ void place(int place) {
#pragma unroll
    for (int i = 0; i < N; ++i) Rule::move(of[i], place);
  }
};

// Windows [first, end) of a column; `left` is the first column of the image that they would have.
// read(row): what they have of a row of the image; write(window, windows).
template <class Windows, int kKernel, int kStride, class Read, class Write>
__device__ void walk_down(int first, int end, int padding, int height, int left, const Read& read,
                          const Write& write) {
  constexpr int kUnroll = kKernel <= 3 ? kKernel : 1;
  constexpr bool kShares = kKernel == kStride + 1;  // a window's last row is the next one's first
  Windows last{};                                   // row of the window above
  const int above = first * kStride - padding;
  if (kShares && above >= 0) last = read(above);
  for (int o = first; o < end; ++o) {
    const int top = o * kStride - padding;
    const int first_row = max(-top, 0), end_row = min(height - top, kKernel);  // of the image
    Windows best;
    if constexpr (!kShares) {
      best = read(top + first_row);
      best.place(first_row * kKernel);
    } else if (first_row == 0) {
      best = last;
    } else {
      best.clear(first_row * kKernel + max(-left, 0));
    }
#pragma unroll kUnroll
    for (int r = 1; r < kKernel; ++r) {
      if (r < first_row + !kShares || r >= end_row) continue;
      const Windows here = read(top + r);
      best.merge(here, r * kKernel);
      if (kShares && r == kStride) last = here;
    }
    write(o, best);
  }
}
