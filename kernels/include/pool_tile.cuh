// Pooling windows over planes by tiles: any kernel, stride and padding, any width. What is done with
// a window is a rule (pool_rules.cuh), where it is an axis (pool_axis.cuh).
//
// A block copies whole planes, or a band of rows of one plane, to shared memory, as one aligned
// run; windows overlap there. A band loads the rows that its neighbour loads too. Rows so long that
// one band does not fit are read through L1 (kStaged false), every element once per window.
#pragma once

#include "pool.cuh"
#include "pool_axis.cuh"
#include "pool_planes.cuh"
#include "pool_walk.cuh"

// Which of the rows of a plane a thread walks down: pieces of them, so that every group of threads
// has one.
struct Walked {
  int each, pieces;

  __device__ Walked(int planes, int rows, int groups) {
    const int wanted = max(groups / max(planes, 1), 1);
    each = (rows + wanted - 1) / wanted;
    pieces = (rows + each - 1) / max(each, 1);
  }
};

constexpr int kLongestWalked = 4;  // kernels: they are unrolled

// What of a plane a window takes, and where the window begins: outside, with padding.
struct Box {
  int top, left;
  int first_row, end_row, first_column, end_column;
};

template <class Rule, class Axis, int kBytes, bool kStaged, Reuse kStores, int kThreads>
struct ForwardTile {
  using T = typename Rule::T;
  using State = typename Rule::State;
  static constexpr int kKernel = Axis::kKernel;

  // `lanes` threads (a power of two) along an output row.
  static __device__ void run(const Rule& any, const T* x, const Planes& planes, const Axis& rows,
                             const Axis& columns, int together, int lanes) {
    const Tile tile(planes.count, planes.bands, planes.band_rows, together, planes.out_height);
    const bool whole = planes.bands == 1;
    const int top = whole ? 0 : max(rows.begin(tile.row), 0);
    const int end =
        whole ? planes.height : min(rows.end(tile.row + tile.rows - 1), planes.height);
    const long long start = (tile.first * planes.height + top) * planes.width;
    const int length = kStaged ? tile.planes * (end - top) * planes.width : 0;
    const Run<T, kBytes, kStaged, kThreads> in(x, start, length,
                                                  dynamic_shared<unsigned char>() + kBytes);
    __syncthreads();

    if constexpr (kKernel <= kLongestWalked) {
      walk(any, in, planes, tile, top, rows, columns, lanes);
    } else {
      every(any, in, planes, tile, top, rows, columns, lanes);
    }
  }

  template <class In>
  static __device__ void walk(const Rule& any, const In& in, const Planes& planes,
                              const Tile& tile, int top, const Axis& rows, const Axis& columns,
                              int lanes) {
    using Read = Windows<Rule, 1>;
    const Walked walked(tile.planes, tile.rows, kThreads / lanes);
    for (int n = threadIdx.x / lanes; n < tile.planes * walked.pieces; n += kThreads / lanes) {
      const int plane = n / walked.pieces;
      const int first = tile.row + n % walked.pieces * walked.each;
      const int end = min(first + walked.each, tile.row + tile.rows);
      const auto& rule = any.of(tile.first + plane);
      const long long origin = static_cast<long long>(plane) * planes.height - top;
      const long long to = (tile.first + plane) * planes.out_height * planes.out_width;
      for (int column = threadIdx.x % lanes; column < planes.out_width; column += lanes) {
        const int left = columns.begin(column);
        const auto read = [&](int row) {
          const T* const p = in.from((origin + row) * planes.width + left);
          Read window;
#pragma unroll
          for (int c = 0; c < kKernel; ++c) {
            const bool there = left + c >= 0 && left + c < planes.width;
            const float value = rule.taken(to_float(in.read(p, c, there)));
            const float taken = there ? value : Rule::outside();
            if (c == 0) {
              window.of[0] = Rule::start(taken, max(-left, 0));
            } else {
              Rule::take(window.of[0], taken, c);
            }
          }
          return window;
        };
        long long p = to + static_cast<long long>(first) * planes.out_width + column;
        const auto write = [&](int, const Read& window) {
          rule.template store<kStores>(p, window.of, 1.0f / (kKernel * kKernel));
          p += planes.out_width;
        };
        walk_down<Read, kKernel, Axis::kStride>(first, end, -rows.begin(0), planes.height, left,
                                                read, write);
      }
    }
  }

  template <class In>
  static __device__ void every(const Rule& any, const In& in, const Planes& planes,
                               const Tile& tile, int top, const Axis& rows, const Axis& columns,
                               int lanes) {
    for (int n = threadIdx.x / lanes; n < tile.planes * tile.rows; n += kThreads / lanes) {
      const int plane = n / tile.rows;
      const int row = tile.row + n % tile.rows;
      const auto& rule = any.of(tile.first + plane);
      const int above = rows.begin(row), below = rows.end(row);
      const long long to = ((tile.first + plane) * planes.out_height + row) * planes.out_width;
      for (int column = threadIdx.x % lanes; column < planes.out_width; column += lanes) {
        const int left = columns.begin(column), right = columns.end(column);
        const Box box{above,
                      left,
                      max(above, 0),
                      min(below, planes.height),
                      max(left, 0),
                      min(right, planes.width)};
        const long long origin = static_cast<long long>(plane) * planes.height - top;
        const State state[1] = {window(rule, in, origin, planes.width, box)};
        rule.template store<kStores>(to + column, state, 1.0f / (kKernel * kKernel));
      }
    }
  }

  // Where nothing in it wins, a window's place is its first element that is not padding.
  template <class In>
  static __device__ State window(const Rule& rule, const In& in, long long origin, int width,
                                 const Box& box) {
    State state =
        Rule::empty((box.first_row - box.top) * kKernel + box.first_column - box.left);
    constexpr int kUnroll = kKernel <= 3 ? kKernel : 1;
    if (box.end_row - box.first_row == kKernel && box.end_column - box.first_column == kKernel) {
#pragma unroll kUnroll
      for (int r = 0; r < kKernel; ++r) {
        const long long p = (origin + box.top + r) * width + box.left;
#pragma unroll
        for (int c = 0; c < kKernel; ++c) {
          Rule::take(state, rule.taken(to_float(in[p + c])), r * kKernel + c);
        }
      }
      return state;
    }
    for (int r = box.first_row; r < box.end_row; ++r) {
      const long long p = (origin + r) * width;
      const int place = (r - box.top) * kKernel - box.left;
      for (int c = box.first_column; c < box.end_column; ++c) {
        Rule::take(state, rule.taken(to_float(in[p + c])), place + c);
      }
    }
    return state;
  }
};

// kGathered: results lie in shared memory before they are written, and x before it is multiplied by.
template <class Rule, class Axis, int kBytes, bool kStaged, bool kGathered, Reuse kStores,
          int kThreads>
struct BackwardTile {
  using T = typename Rule::T;
  template <typename U>
  using RunOf = Run<U, kBytes, kStaged, kThreads>;
  using Staged = typename Rule::template Staged<RunOf<T>, RunOf<unsigned char>>;
  using Inputs = Run<T, kBytes, kGathered, kThreads>;
  using Out = Written<T, kBytes, kGathered, kStores, kThreads>;

  static __device__ void run(const Rule& rule, T* dx, const Planes& planes, const Axis& rows,
                             const Axis& columns, int together, int lanes) {
    const Tile tile(planes.count, planes.bands, planes.band_rows, together, planes.height);
    const bool whole = planes.bands == 1;
    const int top = whole ? 0 : rows.first(tile.row);
    const int end = whole ? planes.out_height : rows.after(tile.row + tile.rows - 1);
    const long long start = (tile.first * planes.out_height + top) * planes.out_width;
    const int length = kStaged ? tile.planes * max(end - top, 0) * planes.out_width : 0;
    unsigned char* shared = dynamic_shared<unsigned char>();
    const Staged windows(rule, start, length, shared);

    if constexpr (Axis::kKernel <= kLongestWalked) {
      const long long to = (tile.first * planes.height + tile.row) * planes.width;
      const int results = tile.planes * tile.rows * planes.width;
      shared += Staged::taken(length);
      const Out out(dx, to, results, shared);
      if constexpr (Rule::kInput) {
        const Inputs x(rule.x, to, results, shared + Out::taken(results));
        __syncthreads();
        walk(windows, x, out, planes, tile, top, end - 1, rows, columns, lanes);
      } else {
        __syncthreads();
        const int none = 0;
        walk(windows, none, out, planes, tile, top, end - 1, rows, columns, lanes);
      }
      out.finish();
    } else {
      __syncthreads();
      every(rule, windows, dx, planes, tile, top, rows, columns, lanes);
    }
    if constexpr (Rule::kSums) write_totals(rule, windows, planes, rows, tile, top);
  }

  // A cell is what kStride rows and columns of dx have, all of it in windows of kMost rows and
  // columns, at places that are constants. A thread walks down a column of cells; windows of rows
  // `top` to `last` are at hand.
  template <class X>
  static __device__ void walk(const Staged& windows, const X& x, const Out& out,
                              const Planes& planes, const Tile& tile, int top, int last,
                              const Axis& rows, const Axis& columns, int lanes) {
    constexpr int kKernel = Axis::kKernel, kStride = Axis::kStride;
    constexpr int kMost = (kKernel + kStride - 1) / kStride;
    struct Across {
      typename Rule::Window of[kMost];
    };
    const int across = columns.cell(planes.width - 1) + 1;
    const int highest = rows.cell(tile.row);
    const int cells = rows.cell(tile.row + tile.rows - 1) - highest + 1;
    const Walked walked(tile.planes, cells, kThreads / lanes);
    for (int n = threadIdx.x / lanes; n < tile.planes * walked.pieces; n += kThreads / lanes) {
      const int plane = n / walked.pieces;
      const int first = highest + n % walked.pieces * walked.each;
      const int end = min(first + walked.each, highest + cells);
      for (int right = threadIdx.x % lanes; right < across; right += lanes) {
        const int column = columns.begin(right);
        bool there[kMost];
#pragma unroll
        for (int e = 0; e < kMost; ++e) {
          there[e] = right >= e && right - e < planes.out_width;
        }
        bool inside[kStride];
#pragma unroll
        for (int k = 0; k < kStride; ++k) {
          inside[k] = column + k >= 0 && column + k < planes.width;
        }
        const auto read = [&](bool held, long long p) {
          Across across;
#pragma unroll
          for (int e = 0; e < kMost; ++e) {
            across.of[e] = held && there[e] ? windows(p - e) : Rule::nothing();
          }
          return across;
        };
        const unsigned int held = last - top + 1;
        const auto at_hand = [&](int m) { return static_cast<unsigned int>(m - top) < held; };
        long long p = (static_cast<long long>(plane) * planes.out_height + first - top) *
                          planes.out_width + right;
        Across near[kMost];  // windows of rows m, m - 1, ...
#pragma unroll
        for (int d = 1; d < kMost; ++d) {
          near[d] = read(at_hand(first - d), p - d * planes.out_width);
        }
        int row = rows.begin(first) - tile.row;  // of the tile
        long long to = (static_cast<long long>(plane) * tile.rows + row) * planes.width + column;
#pragma unroll 2
        for (int m = first; m < end; ++m) {
          near[0] = read(at_hand(m), p);
          p += planes.out_width;
#pragma unroll
          for (int r = 0; r < kStride; ++r) {
            const bool own = static_cast<unsigned int>(row) < static_cast<unsigned int>(tile.rows);
#pragma unroll
            for (int k = 0; k < kStride; ++k) {
              float sum = sum_of(near, r, k);
              if (!own || !inside[k]) continue;
              if constexpr (Rule::kInput) sum *= to_float(x[to + k]);
              Out::put(out.first + to + k, Vector<T, 1>{{from_float<T>(sum)}});
            }
            ++row;
            to += planes.width;
          }
#pragma unroll
          for (int d = kMost - 1; d > 0; --d) near[d] = near[d - 1];
        }
      }
    }
  }

  // Of row r and column k of a cell.
  template <class Across, int kMost>
  static __device__ float sum_of(const Across (&near)[kMost], int r, int k) {
    constexpr int kKernel = Axis::kKernel, kStride = Axis::kStride;
    float sum = 0.0f;
#pragma unroll
    for (int d = kMost - 1; d >= 0; --d) {
#pragma unroll
      for (int e = kMost - 1; e >= 0; --e) {
        const int row = r + d * kStride, column = k + e * kStride;
        if (row >= kKernel || column >= kKernel) continue;
        Rule::add(sum, near[d].of[e], row * kKernel + column, 1.0f / (kKernel * kKernel));
      }
    }
    return sum;
  }

  static __device__ void every(const Rule& rule, const Staged& windows, T* dx,
                               const Planes& planes, const Tile& tile, int top, const Axis& rows,
                               const Axis& columns, int lanes) {
    for (int n = threadIdx.x / lanes; n < tile.planes * tile.rows; n += kThreads / lanes) {
      const int plane = n / tile.rows;
      const int row = tile.row + n % tile.rows;
      const long long origin = static_cast<long long>(plane) * planes.out_height - top;
      const long long to = ((tile.first + plane) * planes.height + row) * planes.width;
      const int above = rows.first(row), below = rows.after(row);
      for (int column = threadIdx.x % lanes; column < planes.width; column += lanes) {
        const int left = columns.first(column), right = columns.after(column);
        float sum = 0.0f;
        // One or two turns each: unrolled further they only take registers.
#pragma unroll 1
        for (int o = above; o < below; ++o) {
          const long long p = (origin + o) * planes.out_width;
          const int row_begin = rows.begin(o);
#pragma unroll 1
          for (int i = left; i < right; ++i) {
            const int begin = columns.begin(i);
            const int place = (row - row_begin) * Axis::kKernel + column - begin;
            Rule::add(sum, windows(p + i), place, 1.0f / (Axis::kKernel * Axis::kKernel));
          }
        }
        if constexpr (Rule::kInput) sum *= to_float(load<Reuse::kNever, 1>(rule.x + to + column)[0]);
        store<kStores>(dx + to + column, Vector<T, 1>{{from_float<T>(sum)}});
      }
    }
  }

  // A warp per plane. A window is counted by the band that has its first row.
  static __device__ void write_totals(const Rule& rule, const Staged& windows, const Planes& planes,
                                      const Axis& rows, const Tile& tile, int top) {
    int first = top, after = rows.after(tile.row + tile.rows - 1);
    while (first < after && rows.begin(first) < tile.row && tile.row > 0) ++first;
    for (int plane = threadIdx.x / kWarp; plane < tile.planes; plane += kThreads / kWarp) {
      const long long origin = static_cast<long long>(plane) * planes.out_height - top;
      float total = 0.0f;
      for (int i = threadIdx.x % kWarp; i < (after - first) * planes.out_width; i += kWarp) {
        total += Rule::counted(windows((origin + first) * planes.out_width + i));
      }
      total = reduce_lanes<Sum>(total);
      if (threadIdx.x % kWarp == 0) rule.write(tile.first + plane, tile.band, planes.bands, total);
    }
  }
};

// On a multiprocessor at least. Left alone, the compiler spills to have one block more.
constexpr int kBlocksOfTiles = 2;

// Operands are those of the rule, in its order.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged, typename... Operands>
__global__ void __launch_bounds__(kThreads, kBlocksOfTiles)
    pool_forward_tiles(const typename Rule::T* x, long long planes, int height, int width,
                       int out_height, int out_width, int bands, int band_rows, int lanes,
                       int padding, int together, Operands... operands) {
  using Axis = FixedAxis<kKernel, kStride>;
  ForwardTile<Rule, Axis, kBytes, kStaged, kStores, kThreads>::run(
      Rule{operands...}, x, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, padding}, {width, out_width, padding}, together, lanes);
}

template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged, bool kGathered, typename... Operands>
__global__ void __launch_bounds__(kThreads, kBlocksOfTiles)
    pool_backward_tiles(typename Rule::T* dx, long long planes, int height, int width,
                        int out_height, int out_width, int bands, int band_rows, int lanes,
                        int padding, int together, Operands... operands) {
  using Axis = FixedAxis<kKernel, kStride>;
  BackwardTile<Rule, Axis, kBytes, kStaged, kGathered, kStores, kThreads>::run(
      Rule{operands...}, dx, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, padding}, {width, out_width, padding}, together, lanes);
}
