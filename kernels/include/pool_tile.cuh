// Max-pooling by tiles (see pool.cuh): any kernel, stride and padding, any width.
#pragma once

#include "pool.cuh"

// A block's work: whole planes, or a band of rows of one plane.
struct Tile {
  long long first;  // plane
  int planes;
  int row, rows;  // of what the block writes

  __device__ Tile(const Planes& all, int together, int height) {
    first = blockIdx.x / all.bands * static_cast<long long>(together);
    planes = all.count - first < together ? static_cast<int>(all.count - first) : together;
    row = static_cast<int>(blockIdx.x % all.bands) * all.band_rows;
    rows = height - row < all.band_rows ? height - row : all.band_rows;
  }
};

// Elements [start, start + length) of a tensor, in shared memory or where they are.
template <typename T, int kBytes, bool kStaged, int kThreads>
struct Run {
  static constexpr int kWidth = elements_in<T, kBytes>();
  const T* data;

  // Takes length * sizeof(T) + 2 * kBytes bytes of shared memory.
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
    return load<Reuse::kSoon, 1>(data + i)[0];
  }
};

template <typename T, int kBytes, int kKernel, int kStride, bool kStaged, Reuse kStores,
          int kThreads>
struct ForwardTile {
  // `lanes` threads (a power of two) along an output row.
  static __device__ void run(const T* x, T* y, unsigned char* offset, const Planes& planes,
                             int padding, int together, int lanes) {
    const Tile tile(planes, together, planes.out_height);
    const bool whole = planes.bands == 1;
    const int above = tile.row * kStride - padding;
    const int below = (tile.row + tile.rows - 1) * kStride - padding + kKernel;
    const int top = whole || above < 0 ? 0 : above;
    const int end = whole || below > planes.height ? planes.height : below;
    const long long start = (tile.first * planes.height + top) * planes.width;
    const int length = kStaged ? tile.planes * (end - top) * planes.width : 0;
    const Run<T, kBytes, kStaged, kThreads> in(x, start, length, dynamic_shared<unsigned char>());
    __syncthreads();

    for (int n = threadIdx.x / lanes; n < tile.planes * tile.rows; n += kThreads / lanes) {
      const int plane = n / tile.rows;
      const int row = tile.row + n % tile.rows;
      const long long origin = static_cast<long long>(plane) * planes.height - top;
      const long long to = ((tile.first + plane) * planes.out_height + row) * planes.out_width;
      for (int column = threadIdx.x % lanes; column < planes.out_width; column += lanes) {
        float best;
        int place;
        window(in, planes, origin, row * kStride - padding, column * kStride - padding, best,
               place);
        store<kStores>(y + to + column, Vector<T, 1>{{from_float<T>(best)}});
        store<kStores>(offset + to + column,
                       Vector<unsigned char, 1>{{static_cast<unsigned char>(place)}});
      }
    }
  }

  template <class In>
  static __device__ void window(const In& in, const Planes& planes, long long origin, int top,
                                int left, float& best, int& place) {
    const int first_row = top < 0 ? -top : 0;
    const int first_column = left < 0 ? -left : 0;
    // Where all is -inf, the place is the first element that is not padding.
    best = Maximum::identity();
    place = first_row * kKernel + first_column;
    const bool inside = top >= 0 && left >= 0 && top + kKernel <= planes.height &&
                        left + kKernel <= planes.width;
    constexpr int kUnroll = kKernel <= 3 ? kKernel : 1;
    if (inside) {
#pragma unroll kUnroll
      for (int r = 0; r < kKernel; ++r) {
        const long long p = (origin + top + r) * planes.width + left;
#pragma unroll
        for (int c = 0; c < kKernel; ++c) {
          take_larger(best, place, to_float(in[p + c]), r * kKernel + c);
        }
      }
    } else {
      const int rows = planes.height - top < kKernel ? planes.height - top : kKernel;
      const int columns = planes.width - left < kKernel ? planes.width - left : kKernel;
      for (int r = first_row; r < rows; ++r) {
        const long long p = (origin + top + r) * planes.width + left;
        for (int c = first_column; c < columns; ++c) {
          take_larger(best, place, to_float(in[p + c]), r * kKernel + c);
        }
      }
    }
  }
};

template <typename T, int kBytes, int kKernel, int kStride, bool kStaged, Reuse kStores,
          int kThreads>
struct BackwardTile {
  static __device__ void run(const T* dy, const unsigned char* offset, T* dx, const Planes& planes,
                             int padding, int together, int lanes) {
    const Tile tile(planes, together, planes.height);
    const bool whole = planes.bands == 1;
    const int top = whole ? 0 : first_window(tile.row + padding);
    const int end = whole ? planes.out_height
                          : after_window(tile.row + tile.rows - 1 + padding, planes.out_height);
    const long long start = (tile.first * planes.out_height + top) * planes.out_width;
    const int rows = end > top ? end - top : 0;
    const int length = kStaged ? tile.planes * rows * planes.out_width : 0;
    unsigned char* const shared = dynamic_shared<unsigned char>();
    const int taken = (length * static_cast<int>(sizeof(T)) + 2 * kBytes) / kBytes * kBytes;
    const Run<T, kBytes, kStaged, kThreads> gradients(dy, start, length, shared);
    const Run<unsigned char, kBytes, kStaged, kThreads> places(offset, start, length,
                                                               shared + taken);
    __syncthreads();

    for (int n = threadIdx.x / lanes; n < tile.planes * tile.rows; n += kThreads / lanes) {
      const int plane = n / tile.rows;
      const int row = tile.row + n % tile.rows;
      const long long origin = static_cast<long long>(plane) * planes.out_height - top;
      const long long to = ((tile.first + plane) * planes.height + row) * planes.width;
      const int above = first_window(row + padding);
      const int below = after_window(row + padding, planes.out_height);
      for (int column = threadIdx.x % lanes; column < planes.width; column += lanes) {
        const int left = first_window(column + padding);
        const int right = after_window(column + padding, planes.out_width);
        float sum = 0.0f;
        // One or two turns each: unrolled further they only take registers.
#pragma unroll 1
        for (int o = above; o < below; ++o) {
          const long long p = (origin + o) * planes.out_width;
          const int place = (row + padding - o * kStride) * kKernel + column + padding;
#pragma unroll 1
          for (int i = left; i < right; ++i) {
            if (places[p + i] == place - i * kStride) sum += to_float(gradients[p + i]);
          }
        }
        store<kStores>(dx + to + column, Vector<T, 1>{{from_float<T>(sum)}});
      }
    }
  }

  // Windows [first, after) hold the element at `at`, counted with the padding.
  static __device__ int first_window(int at) {
    return at < kKernel ? 0 : (at - kKernel) / kStride + 1;
  }
  static __device__ int after_window(int at, int windows) {
    const int after = at / kStride + 1;
    return after < windows ? after : windows;
  }
};
