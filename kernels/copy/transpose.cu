// y[b, j, i] = x[b, i, j]: matrices of one shape, one after the other. NCHW to NHWC is
// channels x pixels of every image, and back pixels x channels.
//
// 1. A thread per element: one of the two sides is a column, an element per sector.
// 2. A tile goes through shared memory: both sides move lines of 128 bytes. A row of the tile is a
//    word longer than its elements, so that a column of it lies in different banks.
// 3. 64 x 64 elements and accesses of 16 bytes: a warp moves 8 of them from each of 4 rows. All
//    loads of a thread are on their way before the first is put down.
// 4. Each side by itself goes by elements where its rows do not all begin on 16 bytes, over the
//    tile as one run: with three channels, consecutive threads still have consecutive elements.
#include "memory.cuh"
#include "shared.cuh"

constexpr int kTile = 64;
constexpr int kThreads = 256;

// A word of shared memory: two elements of 16 bits, or one of 32.
template <typename T>
struct alignas(4) Cell {
  static constexpr int kElements = 4 / sizeof(T);
  T elements[kElements];
};

template <typename T>
class Tile {
  using Word = Cell<T>;
  static constexpr int kPitch = kTile / Word::kElements + 1;

 public:
  static constexpr int kCells = kTile * kPitch;

  __device__ explicit Tile(Word* cells) : cells_(cells) {}

  __device__ T& at(int row, int column) {
    return cells_[row * kPitch + column / Word::kElements].elements[column % Word::kElements];
  }

  // A vector along a row, by words.
  template <int kWidth>
  __device__ void put(int row, int column, const Vector<T, kWidth>& vector) {
    Word* const first = cells_ + row * kPitch + column / Word::kElements;
#pragma unroll
    for (int i = 0; i < kWidth / Word::kElements; ++i) {
      Word word;
#pragma unroll
      for (int k = 0; k < Word::kElements; ++k) word.elements[k] = vector[i * Word::kElements + k];
      first[i] = word;
    }
  }

 private:
  Word* cells_;
};

// Where vector v of a tile is: lines of 128 bytes, row after row.
template <typename T>
struct Place {
  static constexpr int kWidth = elements_in<T, 16>();
  int row, column;

  __device__ explicit Place(int v)
      : row(v / 8 % kTile), column((v / (8 * kTile) * 8 + v % 8) * kWidth) {}
};

// Launched with a block for every tile of every matrix.
template <typename T, Reuse kStores>
__global__ void __launch_bounds__(kThreads)
    transpose(T* y, const T* x, long long rows, long long columns) {
  constexpr int kWidth = elements_in<T, 16>();
  constexpr int kVectors = kTile * kTile / kWidth / kThreads;
  SHARED_ARRAY(Cell<T>, cells, Tile<T>::kCells);
  Tile<T> tile(cells);

  const long long across = (columns + kTile - 1) / kTile;
  const long long down = (rows + kTile - 1) / kTile;
  const long long matrix = blockIdx.x / (across * down);
  const long long i0 = blockIdx.x / across % down * kTile;
  const long long j0 = blockIdx.x % across * kTile;
  const int height = rows - i0 < kTile ? static_cast<int>(rows - i0) : kTile;
  const int width = columns - j0 < kTile ? static_cast<int>(columns - j0) : kTile;
  const T* const from = x + matrix * rows * columns + i0 * columns + j0;
  T* const to = y + matrix * rows * columns + j0 * rows + i0;

  if (columns % kWidth == 0 && aligned<16>(x)) {
    Vector<T, kWidth> in[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const Place<T> at(k * kThreads + threadIdx.x);
      if (at.row < height && at.column < width) {
        in[k] = load<Reuse::kNever, kWidth>(from + at.row * columns + at.column);
      }
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const Place<T> at(k * kThreads + threadIdx.x);
      if (at.row < height && at.column < width) tile.put(at.row, at.column, in[k]);
    }
  } else {
#pragma unroll 4
    for (int e = threadIdx.x; e < height * width; e += kThreads) {
      const int i = e / width;
      const int j = e % width;
      tile.at(i, j) = load<Reuse::kNever, 1>(from + i * columns + j)[0];
    }
  }
  __syncthreads();
  if (rows % kWidth == 0 && aligned<16>(y)) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const Place<T> at(k * kThreads + threadIdx.x);
      if (at.row >= width || at.column >= height) continue;
      Vector<T, kWidth> out;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) out[e] = tile.at(at.column + e, at.row);
      store<kStores>(to + at.row * rows + at.column, out);
    }
  } else {
#pragma unroll 4
    for (int e = threadIdx.x; e < height * width; e += kThreads) {
      const int j = e / height;
      const int i = e % height;
      store<kStores>(to + j * rows + i, Vector<T, 1>{{tile.at(i, j)}});
    }
  }
}
