// What a block has of planes (one channel of one image): whole planes, or a band of rows of one, as
// one aligned run in shared memory.
#pragma once

#include "memory.cuh"
#include "row.cuh"
#include "shared.cuh"

// A block's work: whole planes, or a band of rows of one plane.
struct Tile {
  long long first;  // plane
  int planes;
  int band, row, rows;  // of what the block writes

  // Of `count` planes of this height, `together` in a block or cut into bands.
  __device__ Tile(long long count, int bands, int band_rows, int together, int height) {
    first = blockIdx.x / bands * static_cast<long long>(together);
    planes = count - first < together ? static_cast<int>(count - first) : together;
    band = static_cast<int>(blockIdx.x % bands);
    row = band * band_rows;
    rows = height - row < band_rows ? height - row : band_rows;
  }
};

// Elements [start, start + length) of a tensor as whole vectors [first, end), counted from the one
// that has the first element, and the elements before and behind them, one by one.
template <typename T, int kBytes, int kThreads>
struct Cut {
  static constexpr int kWidth = elements_in<T, kBytes>();
  int lead, length;  // elements of vector 0 that come before the run
  int first, end;

  __device__ Cut(const T* p, long long start, int length) : length(length) {
    const unsigned long long shift = reinterpret_cast<unsigned long long>(p) / sizeof(T);
    lead = static_cast<int>((shift + start) % kWidth);
    first = lead > 0;
    end = (lead + length) / kWidth;
  }

  // move(i): element i of those from vector 0 on.
  template <class Move>
  __device__ void edges(const Move& move) const {
    const int i = threadIdx.x % kWidth;
    if (threadIdx.x < kWidth) {
      if (first && i >= lead && i < lead + length) move(i);
    } else if (threadIdx.x < 2 * kWidth) {
      if (end >= first && end * kWidth + i < lead + length) move(end * kWidth + i);
    }
  }
};

// A run of a tensor, in shared memory or where it is.
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
      const Cut<T, kBytes, kThreads> cut(p, start, length);
      const T* const from = p + start - cut.lead;
      T* const elements = reinterpret_cast<T*>(shared);
      Packed<T, kWidth>* const staged = reinterpret_cast<Packed<T, kWidth>*>(shared);
      constexpr int kLoads = 4;  // asked for before the first is used
      for (int base = cut.first + threadIdx.x; base < cut.end; base += kLoads * kThreads) {
        const T* const vectors = from + static_cast<long long>(base) * kWidth;
        Packed<T, kWidth> values[kLoads];
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          if (base + k * kThreads < cut.end) {
            values[k] =
                Packed<T, kWidth>::of(load<Reuse::kNever, kWidth>(vectors + k * kThreads * kWidth));
          }
        }
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          if (base + k * kThreads < cut.end) staged[base + k * kThreads] = values[k];
        }
      }
      cut.edges([&](int i) { elements[i] = load<Reuse::kNever, 1>(from + i)[0]; });
      data = elements + cut.lead;
    }
  }

  __device__ T operator[](long long i) const {
    if constexpr (kStaged) return data[static_cast<int>(i)];
    return load<Reuse::kNever, 1>(data + i)[0];
  }
  // Element `i` of those from `row` on. One that is not there may be anything: in shared memory there
  // are kBytes before the run, and behind it.
  __device__ const T* from(long long i) const {
    if constexpr (kStaged) return data + static_cast<int>(i);
    return data + i;
  }
  static __device__ T read(const T* row, int i, bool there) {
    if constexpr (kStaged) return row[i];
    return there ? load<Reuse::kNever, 1>(row + i)[0] : T();
  }
};

// What a block writes of a tensor: in shared memory first, or where it belongs.
template <typename T, int kBytes, bool kGathered, Reuse kStores, int kThreads>
struct Written {
  static constexpr int kWidth = elements_in<T, kBytes>();
  T* to;  // vector 0
  Cut<T, kBytes, kThreads> cut;
  T* gathered;
  T* first;  // element of the block

  // Bytes of shared memory that so many elements take.
  static __device__ int taken(int length) {
    return kGathered ? Run<T, kBytes, true, kThreads>::taken(length) : 0;
  }

  __device__ Written(T* p, long long start, int length, unsigned char* shared)
      : to(p + start), cut(p, start, length), gathered(reinterpret_cast<T*>(shared)), first(to) {
    to -= cut.lead;
    if constexpr (kGathered) first = gathered + cut.lead;
  }

  // `at`: an element that lies behind `first`.
  template <int N>
  static __device__ void put(T* at, const Vector<T, N>& values) {
    if constexpr (kGathered) {
      *at = values[0];
    } else {
      store<kStores>(at, values);
    }
  }
  // Once all of the block has put its elements.
  __device__ void finish() const {
    if constexpr (kGathered) {
      __syncthreads();
      const Packed<T, kWidth>* const vectors = reinterpret_cast<const Packed<T, kWidth>*>(gathered);
#pragma unroll 2
      for (int v = cut.first + threadIdx.x; v < cut.end; v += kThreads) {
        store<kStores>(to + static_cast<long long>(v) * kWidth, vectors[v].vector());
      }
      cut.edges([&](int i) { store<kStores>(to + i, Vector<T, 1>{{gathered[i]}}); });
    }
  }
};
