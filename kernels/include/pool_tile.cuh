// Pooling windows over planes by tiles: any kernel, stride and padding, any width, and windows that
// differ. What is done with a window is a rule (pool_rules.cuh), where it is an axis
// (pool_axis.cuh).
//
// A block copies whole planes, or a band of rows of one plane, to shared memory, as one aligned
// run; windows overlap there. A band loads the rows that its neighbour loads too. Rows so long that
// one band does not fit are read through L1 (kStaged false), every element once per window.
#pragma once

#include "pool.cuh"
#include "pool_axis.cuh"

// A block's work: whole planes, or a band of rows of one plane.
struct Tile {
  long long first;  // plane
  int planes;
  int band, row, rows;  // of what the block writes

  __device__ Tile(const Planes& all, int together, int height) {
    first = blockIdx.x / all.bands * static_cast<long long>(together);
    planes = all.count - first < together ? static_cast<int>(all.count - first) : together;
    band = static_cast<int>(blockIdx.x % all.bands);
    row = band * all.band_rows;
    rows = height - row < all.band_rows ? height - row : all.band_rows;
  }
};

// Elements [start, start + length) of a tensor, in shared memory or where they are.
template <typename T, int kBytes, bool kStaged, int kThreads>
struct Run {
  static constexpr int kWidth = elements_in<T, kBytes>();
  const T* data;

  // Bytes of shared memory that a run of this length takes.
  static __device__ int taken(int length) {
    return (length * static_cast<int>(sizeof(T)) + 2 * kBytes) / kBytes * kBytes;
  }

  __device__ Run(const T* p, long long start, int length, unsigned char* shared) : data(p + start) {
    if constexpr (kStaged) {
      const int shift =
          static_cast<int>(reinterpret_cast<unsigned long long>(p) % kBytes / sizeof(T));
      const Row<T, kWidth, true> run(start, length, shift);
      Packed<T, kWidth>* const staged = reinterpret_cast<Packed<T, kWidth>*>(shared);
      constexpr int kLoads = 4;  // asked for before the first is used
      for (int base = threadIdx.x; base < run.vectors(); base += kLoads * kThreads) {
        Packed<T, kWidth> values[kLoads];
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          if (base + k * kThreads < run.vectors()) {
            values[k] = run.template load<Reuse::kNever>(p, base + k * kThreads);
          }
        }
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          if (base + k * kThreads < run.vectors()) staged[base + k * kThreads] = values[k];
        }
      }
      data = reinterpret_cast<const T*>(staged) + run.lead;
    }
  }

  __device__ T operator[](long long i) const {
    if constexpr (kStaged) return data[static_cast<int>(i)];
    return load<Reuse::kNever, 1>(data + i)[0];
  }
};

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
    const Tile tile(planes, together, planes.out_height);
    const bool whole = planes.bands == 1;
    const int top = whole ? 0 : max(rows.begin(tile.row), 0);
    const int end =
        whole ? planes.height : min(rows.end(tile.row + tile.rows - 1), planes.height);
    const long long start = (tile.first * planes.height + top) * planes.width;
    const int length = kStaged ? tile.planes * (end - top) * planes.width : 0;
    const Run<T, kBytes, kStaged, kThreads> in(x, start, length, dynamic_shared<unsigned char>());
    __syncthreads();

    for (int n = threadIdx.x / lanes; n < tile.planes * tile.rows; n += kThreads / lanes) {
      const int plane = n / tile.rows;
      const int row = tile.row + n % tile.rows;
      const auto& rule = any.of(tile.first + plane);
      const int above = rows.begin(row), below = rows.end(row);
      const float row_weight = Axis::weight(above, below);
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
        rule.template store<kStores>(to + column, state, row_weight * Axis::weight(left, right));
      }
    }
  }

  // Where nothing in it wins, a window's place is its first element that is not padding.
  template <class In>
  static __device__ State window(const Rule& rule, const In& in, long long origin, int width,
                                 const Box& box) {
    State state =
        Rule::empty((box.first_row - box.top) * kKernel + box.first_column - box.left);
    if constexpr (kKernel > 0) {
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

template <class Rule, class Axis, int kBytes, bool kStaged, Reuse kStores, int kThreads>
struct BackwardTile {
  using T = typename Rule::T;
  template <typename U>
  using RunOf = Run<U, kBytes, kStaged, kThreads>;
  using Staged = typename Rule::template Staged<RunOf<T>, RunOf<unsigned char>>;

  static __device__ void run(const Rule& rule, T* dx, const Planes& planes, const Axis& rows,
                             const Axis& columns, int together, int lanes) {
    const Tile tile(planes, together, planes.height);
    const bool whole = planes.bands == 1;
    const int top = whole ? 0 : rows.first(tile.row);
    const int end = whole ? planes.out_height : rows.after(tile.row + tile.rows - 1);
    const long long start = (tile.first * planes.out_height + top) * planes.out_width;
    const int length = kStaged ? tile.planes * max(end - top, 0) * planes.out_width : 0;
    const Staged windows(rule, start, length, dynamic_shared<unsigned char>());
    __syncthreads();

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
          const float row_weight = Axis::weight(row_begin, rows.end(o));
#pragma unroll 1
          for (int i = left; i < right; ++i) {
            const int begin = columns.begin(i);
            const int place = (row - row_begin) * Axis::kKernel + column - begin;
            Rule::add(sum, windows(p + i), place, row_weight * Axis::weight(begin, columns.end(i)));
          }
        }
        if constexpr (Rule::kInput) sum *= to_float(load<Reuse::kNever, 1>(rule.x + to + column)[0]);
        store<kStores>(dx + to + column, Vector<T, 1>{{from_float<T>(sum)}});
      }
    }
    if constexpr (Rule::kSums) write_totals(rule, windows, planes, rows, tile, top);
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

// Operands are those of the rule, in its order.
template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged, typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_forward_tiles(const typename Rule::T* x, long long planes, int height, int width,
                       int out_height, int out_width, int bands, int band_rows, int lanes,
                       int padding, int together, Operands... operands) {
  using Axis = FixedAxis<kKernel, kStride>;
  ForwardTile<Rule, Axis, kBytes, kStaged, kStores, kThreads>::run(
      Rule{operands...}, x, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, padding}, {width, out_width, padding}, together, lanes);
}

template <class Rule, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged, typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_backward_tiles(typename Rule::T* dx, long long planes, int height, int width,
                        int out_height, int out_width, int bands, int band_rows, int lanes,
                        int padding, int together, Operands... operands) {
  using Axis = FixedAxis<kKernel, kStride>;
  BackwardTile<Rule, Axis, kBytes, kStaged, kStores, kThreads>::run(
      Rule{operands...}, dx, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, padding}, {width, out_width, padding}, together, lanes);
}

// The same with windows that differ; the last four are the divisors of an axis, see Divider.
template <class Rule, int kBytes, Reuse kStores, int kThreads, bool kStaged, typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_forward_adaptive(const typename Rule::T* x, long long planes, int height, int width,
                          int out_height, int out_width, int bands, int band_rows, int lanes,
                          int together, unsigned long long by_height,
                          unsigned long long by_out_height, unsigned long long by_width,
                          unsigned long long by_out_width, Operands... operands) {
  ForwardTile<Rule, AdaptiveAxis, kBytes, kStaged, kStores, kThreads>::run(
      Rule{operands...}, x, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, {by_height}, {by_out_height}},
      {width, out_width, {by_width}, {by_out_width}}, together, lanes);
}

template <class Rule, int kBytes, Reuse kStores, int kThreads, bool kStaged, typename... Operands>
__global__ void __launch_bounds__(kThreads)
    pool_backward_adaptive(typename Rule::T* dx, long long planes, int height, int width,
                           int out_height, int out_width, int bands, int band_rows, int lanes,
                           int together, unsigned long long by_height,
                           unsigned long long by_out_height, unsigned long long by_width,
                           unsigned long long by_out_width, Operands... operands) {
  BackwardTile<Rule, AdaptiveAxis, kBytes, kStaged, kStores, kThreads>::run(
      Rule{operands...}, dx, {planes, height, width, out_height, out_width, bands, band_rows},
      {height, out_height, {by_height}, {by_out_height}},
      {width, out_width, {by_width}, {by_out_width}}, together, lanes);
}
