// Rows of a table by index, and the sum of rows that belong to one row of a table.
//
// Forward
// 1. A thread per element asks for its index again and again, and divides to find its token.
// 2. Threads share a token: its index once, then its row in vectors, kLoads of them on their way.
//    kBytes divides a row, so that every row begins where a vector may.
// 3. Rows of the table stay in the cache, where a frequent token finds its own again.
//
// Backward: out = rows + the sum of dy over the tokens of each row
// 1. An atomic addition per element adds in the order in which blocks happen to run.
// 2. A warp per row adds the tokens of the row in order. Words are as frequent as Zipf found: the
//    warp of the most frequent one still runs when all others are done.
// 3. Tokens are sorted by row beforehand and cut into pieces of 32, whatever rows they belong to. A
//    warp adds the tokens of a piece for one tile of columns; rows that begin and end inside of it
//    are done. What a row leaves in pieces that it shares with its neighbours are float32 partial
//    sums, which a second kernel adds in the order of the pieces.
// 4. Eight rows of dy are on their way before the first is added, wherever rows of the table end.
#pragma once

#include "memory.cuh"
#include "reduce.cuh"

constexpr int kPiece = kWarp;  // tokens: a lane holds the place and the row of one

// y[t] = table[index[t]]; NaN where that is no row. Groups of kLanes threads have a token each.
template <int kBytes, int kLanes, int kLoads, int kThreads, Reuse kStores, typename T>
__global__ void embedding(T* y, long long tokens, int columns, const long long* index,
                          const T* table, long long vocabulary) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const long long token =
      static_cast<long long>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (token >= tokens) return;
  const long long row = load<Reuse::kNever, 1>(index + token)[0];
  const bool there = 0 <= row && row < vocabulary;
  const T* const from = table + row * columns;
  T* const to = y + token * columns;
  for (int first = threadIdx.x % kLanes * kWidth; first < columns;
       first += kLanes * kLoads * kWidth) {
    Vector<T, kWidth> values[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int column = first + k * kLanes * kWidth;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) values[k][e] = from_float<T>(__int_as_float(0x7fc00000));
      if (there && column < columns) values[k] = load<Reuse::kSoon, kWidth>(from + column);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int column = first + k * kLanes * kWidth;
      if (column < columns) store<kStores>(to + column, values[k]);
    }
  }
}

// What a warp works on: piece `piece` of the sorted tokens, and where its lane's columns begin.
// In 32 bits, of which no memory has use for more: a unit is 32 tokens and 32 vectors.
template <int kThreads, int kWidth>
struct PieceTile {
  int piece;
  int column;

  __device__ explicit PieceTile(int columns) {
    const unsigned int unit = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
    const unsigned int tiles = (static_cast<unsigned int>(columns) + kWarp * kWidth - 1) /
                               (kWarp * kWidth);
    piece = static_cast<int>(unit / tiles);
    column = static_cast<int>((unit % tiles * kWarp + threadIdx.x % kWarp) * kWidth);
  }
};

// Row of a sorted token; -1 where there is none.
__device__ inline int row_of(const int* rows, long long token, long long tokens) {
  return 0 <= token && token < tokens ? load<Reuse::kSoon, 1>(rows + token)[0] : -1;
}

template <typename T, int kWidth>
struct Sums {
  static constexpr int kFloats = kWidth < 8 ? kWidth : 8;  // of partial sums: up to a sector
  float values[kWidth];

  __device__ void clear() {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] = 0.0f;
  }
  template <typename S>
  __device__ void add(const Vector<S, kWidth>& vector) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) values[e] += to_float(vector[e]);
  }
  template <Reuse kStores>
  __device__ void finish(T* out, const Vector<T, kWidth>& before) {
    add(before);
    store<kStores>(out, from_floats<T>(values));
  }
  __device__ void keep(float* partial) const {
#pragma unroll
    for (int e = 0; e < kWidth; e += kFloats) {
      Vector<float, kFloats> some;
#pragma unroll
      for (int i = 0; i < kFloats; ++i) some[i] = values[e + i];
      store<Reuse::kSoon>(partial + e, some);
    }
  }
  __device__ void take_partial(const float* partial) {
#pragma unroll
    for (int e = 0; e < kWidth; e += kFloats) {
      const Vector<float, kFloats> some = load<Reuse::kSoon, kFloats>(partial + e);
#pragma unroll
      for (int i = 0; i < kFloats; ++i) values[e + i] = some[i];
    }
  }
  __device__ void add_partial(const float* partial) {
#pragma unroll
    for (int e = 0; e < kWidth; e += kFloats) {
      const Vector<float, kFloats> some = load<Reuse::kSoon, kFloats>(partial + e);
#pragma unroll
      for (int i = 0; i < kFloats; ++i) values[e + i] += some[i];
    }
  }
};

constexpr unsigned int kNoSeam = ~0u;

// What a piece leaves for the second kernel: in `partials` two rows of `columns`, of the row that
// comes from the piece before and of the one that begins here and goes on into the next; in `seams`
// twice the row that comes from the piece before, and 1 if it goes on into the next, or kNoSeam.
template <int kBytes, int kAhead, int kThreads, Reuse kStores, typename T>
__global__ void embedding_backward(T* out, float* partials, unsigned int* seams, long long tokens,
                                   int columns, const T* before, const T* dy,
                                   const long long* order, const int* rows) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const PieceTile<kThreads, kWidth> at(columns);
  const long long first = static_cast<long long>(at.piece) * kPiece;
  if (first >= tokens) return;
  const int length = tokens - first < kPiece ? static_cast<int>(tokens - first) : kPiece;
  const int lane = threadIdx.x % kWarp;
  const int own_row = row_of(rows, first + lane, tokens);
  const long long own_place = lane < length ? load<Reuse::kSoon, 1>(order + first + lane)[0] : 0;
  const int row_before = row_of(rows, first - 1, tokens);
  const int row_after = row_of(rows, first + kPiece, tokens);
  const bool mine = at.column < columns;

  Sums<T, kWidth> sums;
  sums.clear();
  const int first_row = __shfl_sync(kWholeWarp, own_row, 0);
  bool begun_here = first_row != row_before;
  if (at.column == 0) {
    const unsigned int seam = first_row * 2u + (first_row == row_after);
    store<Reuse::kSoon>(seams + at.piece, Vector<unsigned int, 1>{{begun_here ? kNoSeam : seam}});
  }
  for (int base = 0; base < length; base += kAhead) {
    Vector<T, kWidth> values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const long long place = __shfl_sync(kWholeWarp, own_place, base + k);
      if (mine && base + k < length) {
        values[k] = load<Reuse::kNever, kWidth>(dy + place * columns + at.column);
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int t = base + k;
      const int row = __shfl_sync(kWholeWarp, own_row, t);
      const int following = __shfl_sync(kWholeWarp, own_row, (t + 1) % kWarp);
      if (t >= length) continue;
      if (mine) sums.add(values[k]);
      const bool last = t + 1 == length;
      const bool ends = row != (last ? row_after : following);
      if (!ends && !last) continue;
      const long long element = static_cast<long long>(row) * columns + at.column;
      if (mine && ends && begun_here) {
        sums.template finish<kStores>(out + element,
                                      load<Reuse::kNever, kWidth>(before + element));
      } else if (mine) {
        sums.keep(partials + (2LL * at.piece + begun_here) * columns + at.column);
      }
      sums.clear();
      begun_here = true;
    }
  }
}

// The rows that several pieces share, each by the warps of the piece it ends in.
template <int kBytes, int kThreads, Reuse kStores, typename T>
__global__ void embedding_seams(T* out, const float* partials, const unsigned int* seams,
                                long long tokens, int columns, const T* before) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const PieceTile<kThreads, kWidth> at(columns);
  if (static_cast<long long>(at.piece) * kPiece >= tokens) return;
  const unsigned int seam = load<Reuse::kSoon, 1>(seams + at.piece)[0];
  if (seam & 1u) return;  // none, or it goes on
  const unsigned int row = seam / 2;
  // Back to the piece the row begins in: a lane asks for every piece, 32 at once. The row comes
  // into none that is before the first.
  const int lane = threadIdx.x % kWarp;
  int begin = at.piece;
  int passed = kWarp;
  while (passed == kWarp) {
    const int piece = begin - lane;
    const bool comes = piece >= 0 && load<Reuse::kSoon, 1>(seams + piece)[0] / 2 == row;
    const unsigned int stops = ~__ballot_sync(kWholeWarp, comes);
    passed = min(static_cast<unsigned int>(__ffs(stops)) - 1u, kWarp + 0u);  // none stops: 2^32 - 1
    begin -= passed;
  }
  if (at.column >= columns) return;
  const long long element = static_cast<long long>(row) * columns + at.column;
  const Vector<T, kWidth> given = load<Reuse::kNever, kWidth>(before + element);
  Sums<T, kWidth> sums;
  const float* partial = partials + (2LL * begin + 1) * columns + at.column;
  sums.take_partial(partial);
  partial += columns;
  for (int piece = begin; piece < at.piece; ++piece, partial += 2LL * columns) {
    sums.add_partial(partial);
  }
  sums.template finish<kStores>(out + element, given);
}
