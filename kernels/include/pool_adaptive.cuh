// Means over windows that spread evenly over an image, as PyTorch's adaptive pooling has them, and
// their gradient.
//
// 1. A thread per element works out its windows: divisions, two loops of few turns and a
//    reciprocal, for two bytes.
// 2. A thread walks down a column. Which windows there are is known when this is compiled: lengths
//    of windows are constants, and rows are unrolled where a plane has few of them. A row that two
//    windows share is added up once; backward, rows of the same windows are one value.
// 3. Rows of whole vectors are written by vectors of columns. Others are gathered in shared memory
//    and written as one aligned run.
#pragma once

#include "math.cuh"
#include "pool_planes.cuh"

__host__ __device__ constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// Windows over an axis: window o is [floor(o length / windows), ceil((o + 1) length / windows)).
// length * (windows + 1) and its twin stay below 2^31.
template <int kLength_, int kWindows_>
struct EvenAxis {
  static constexpr int kLength = kLength_, kWindows = kWindows_;
  static constexpr int kShortest = (kLength + kWindows - 1) / kWindows;
  // Windows begin at multiples of the divisor after an element: one that begins at the last of them
  // reaches one element further, unless no more than the divisor is left over.
  static constexpr bool kDiffer =
      kLength % kWindows > greatest_common_divisor(kLength, kWindows);
  static constexpr int kLongest = kShortest + kDiffer;

  // An element is in windows [floor(e windows / length), ceil((e + 1) windows / length)): the same
  // the other way round.
  using Elements = EvenAxis<kWindows, kLength>;

  static __device__ constexpr int begin(int window) {
    return static_cast<unsigned int>(window * kLength) / kWindows;
  }
  static __device__ constexpr int end(int window) {
    return static_cast<unsigned int>((window + 1) * kLength + kWindows - 1) / kWindows;
  }
  static __device__ bool longest(int window) {
    return kDiffer && end(window) - begin(window) == kLongest;
  }
  // 1 / the elements of a window.
  static __device__ float weight(int window) {
    return longest(window) ? 1.0f / kLongest : 1.0f / kShortest;
  }
};

__host__ __device__ constexpr int unrolled(int turns) { return turns <= 16 ? turns : 4; }

// Pieces of a tile that threads walk down: `across` of them beside each other, so many below each
// other that every thread has one.
struct Pieces {
  int each, below, count;

  __device__ Pieces(const Tile& tile, int across, int threads)
      : each((tile.planes * tile.rows * across + threads - 1) / threads),
        below((tile.rows + each - 1) / max(each, 1)),
        count(tile.planes * below * across) {}
};

// On a multiprocessor at least. Vectors of gradients take more registers.
constexpr int kBlocksOfAdaptive = 4, kBlocksOfVectors = 2;

constexpr int kMostUnrolled = 160;  // elements of a window

// kWhole: blocks have whole planes, and a thread the whole column of one: rows are unrolled.
template <typename T, class Rows, class Columns, int kBytes, Reuse kStores, int kThreads,
          bool kStaged, bool kGathered, bool kWhole>
__global__ void __launch_bounds__(kThreads, kBlocksOfAdaptive)
    adaptive_means(const T* x, T* y, long long planes, int bands, int band_rows, int together) {
  constexpr int kHeight = Rows::kLength, kWidth = Columns::kLength;
  constexpr int kOutHeight = Rows::kWindows, kOutWidth = Columns::kWindows;
  constexpr bool kSmall = Rows::kShortest * Columns::kShortest <= kMostUnrolled;
  constexpr int kRows = kWhole ? kOutHeight : 1, kOfWindow = kSmall ? Rows::kShortest : 1;
  constexpr int kBeside = unrolled(Columns::kShortest);
  const Tile tile(planes, bands, band_rows, together, kOutHeight);
  const int top = bands == 1 ? 0 : Rows::begin(tile.row);
  const int end = bands == 1 ? kHeight : Rows::end(tile.row + tile.rows - 1);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  const int length = kStaged ? tile.planes * (end - top) * kWidth : 0;
  using In = Run<T, kBytes, kStaged, kThreads>;
  const In in(x, (tile.first * kHeight + top) * kWidth, length, shared + kBytes);
  using Out = Written<T, kBytes, kGathered, kStores, kThreads>;
  const Out out(
      y, (tile.first * kOutHeight + tile.row) * kOutWidth, tile.planes * tile.rows * kOutWidth,
      shared + kBytes + In::taken(length));
  __syncthreads();

  const Pieces pieces(tile, kOutWidth, kThreads);
  const int count = kWhole ? tile.planes * kOutWidth : pieces.count;
  for (int n = threadIdx.x; n < count; n += kThreads) {
    const int column = n % kOutWidth, piece = n / kOutWidth;
    const int plane = kWhole ? piece : piece / pieces.below;
    const int first = kWhole ? 0 : tile.row + piece % pieces.below * pieces.each;
    const int last = kWhole ? kOutHeight : min(first + pieces.each, tile.row + tile.rows);
    const T* const from =
        in.from((static_cast<long long>(plane) * kHeight - top) * kWidth + Columns::begin(column));
    const bool longest = Columns::longest(column);
    const float weight = Columns::weight(column);
    const auto across = [&](int row) {
      const T* const p = from + static_cast<long long>(row) * kWidth;
      float sum = to_float(In::read(p, 0, true));
#pragma unroll kBeside
      for (int c = 1; c < Columns::kShortest; ++c) sum += to_float(In::read(p, c, true));
      if (longest) sum += to_float(In::read(p, Columns::kShortest, true));
      return sum;
    };
    T* to = out.first + column +
            (static_cast<long long>(plane) * kOutHeight + first - tile.row) * kOutWidth;
    float value = 0.0f;
    int before = -1;  // the row that gave it
#pragma unroll kRows
    for (int o = first; o < last; ++o) {
      const int begin = Rows::begin(o);
      if (begin != before) value = across(begin);
      float sum = 0.0f + value;
#pragma unroll kOfWindow
      for (int row = begin + 1; row < begin + Rows::kShortest; ++row) {
        value = across(row);
        sum += value;
      }
      if (Rows::longest(o)) {
        value = across(begin + Rows::kShortest);
        sum += value;
      }
      before = Rows::end(o) - 1;
      Out::put(to, Vector<T, 1>{{from_float<T>(sum * (weight * Rows::weight(o)))}});
      to += kOutWidth;
    }
  }
  out.finish();
}

// kColumns of dx a thread: 1 unless rows are whole vectors of them.
template <typename T, class Rows, class Columns, int kColumns, int kBytes, Reuse kStores,
          int kThreads, bool kStaged, bool kGathered, bool kWhole>
__global__ void __launch_bounds__(kThreads, kColumns == 1 ? kBlocksOfAdaptive : kBlocksOfVectors)
    adaptive_gradients(const T* dy, T* dx, long long planes, int bands, int band_rows,
                       int together) {
  constexpr int kHeight = Rows::kLength, kWidth = Columns::kLength;
  constexpr int kOutHeight = Rows::kWindows, kOutWidth = Columns::kWindows;
  constexpr int kAcross = kWidth / kColumns;
  using RowsOf = typename Rows::Elements;  // windows of a row, and of a column
  using ColumnsOf = typename Columns::Elements;
  constexpr int kRows = kWhole ? kOutHeight : 1, kOfWindow = kWhole ? Rows::kLongest : 1;
  constexpr int kBeside = unrolled(ColumnsOf::kShortest);
  const Tile tile(planes, bands, band_rows, together, kHeight);
  const int top = bands == 1 ? 0 : RowsOf::begin(tile.row);
  const int end = bands == 1 ? kOutHeight : RowsOf::end(tile.row + tile.rows - 1);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  const int length = kStaged ? tile.planes * (end - top) * kOutWidth : 0;
  using In = Run<T, kBytes, kStaged, kThreads>;
  const In in(dy, (tile.first * kOutHeight + top) * kOutWidth, length, shared + kBytes);
  using Out = Written<T, kBytes, kGathered, kStores, kThreads>;
  const Out out(
      dx, (tile.first * kHeight + tile.row) * kWidth, tile.planes * tile.rows * kWidth,
      shared + kBytes + In::taken(length));
  __syncthreads();

  const Pieces pieces(tile, kAcross, kThreads);
  const int count = kWhole ? tile.planes * kAcross : pieces.count;
  for (int n = threadIdx.x; n < count; n += kThreads) {
    const int column = n % kAcross * kColumns, piece = n / kAcross;
    const int plane = kWhole ? piece : piece / pieces.below;
    const int first = kWhole ? 0 : tile.row + piece % pieces.below * pieces.each;
    const int last = kWhole ? kHeight : min(first + pieces.each, tile.row + tile.rows);
    const T* const from =
        in.from((static_cast<long long>(plane) * kOutHeight - top) * kOutWidth);
    // What one row of windows gives the columns.
    const auto add_across = [&](int o, float(&sums)[kColumns]) {
      const T* const p = from + static_cast<long long>(o) * kOutWidth;
      const float weight = Rows::weight(o);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int left = ColumnsOf::begin(column + c);
        const auto add = [&](int i) {
          const float share = weight * Columns::weight(left + i);
          sums[c] = fmaf(to_float(In::read(p, left + i, true)), share, sums[c]);
        };
#pragma unroll kBeside
        for (int i = 0; i < ColumnsOf::kShortest; ++i) add(i);
        if (ColumnsOf::longest(column + c)) add(ColumnsOf::kShortest);
      }
    };
    T* to = out.first + column +
            (static_cast<long long>(plane) * kHeight + first - tile.row) * kWidth;
    // Rows [begin(o), begin(o + 1)) have no window behind o. The first of them may have the one
    // before it too, or several that begin there.
    float sums[kColumns], above[kColumns] = {};
#pragma unroll kRows
    for (int o = kWhole ? 0 : RowsOf::begin(first); o < kOutHeight; ++o) {
      const int begin = Rows::begin(o), next = Rows::begin(o + 1);
      if (begin >= last) break;
      float own[kColumns] = {};
      add_across(o, own);
      const bool same = o > 0 && begin == Rows::begin(o - 1);
      const bool shared_row = o > 0 && Rows::end(o - 1) > begin;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        sums[c] = same ? sums[c] + own[c] : shared_row ? above[c] + own[c] : own[c];
        above[c] = own[c];
      }
      const Vector<T, kColumns> values = from_floats<T>(sums), others = from_floats<T>(own);
#pragma unroll kOfWindow
      for (int row = begin; row < next; ++row) {
        if (!kWhole && (row < first || row >= last)) continue;
        Out::put(to, row == begin ? values : others);
        to += kWidth;
      }
    }
  }
  out.finish();
}
