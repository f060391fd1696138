// Rows of a matrix: how a row is cut into vectors, and sums over the threads that share it.
//
// A row is cut where memory is aligned, not where the row begins. With 4097 columns of bfloat16 only
// every eighth row begins on 16 bytes; cut at the row, seven rows in eight would go by elements.
// Cut in memory, only the first and the last vector of a row can be partial:
//
//   memory   |........|........|........|........|      16-byte steps
//   row           |>>>>>>>>>>>>>>>>>>>>>>>|
//   vector   0     1        2        3                  lead = columns of vector 0 before the row
#pragma once

#include "memory.cuh"
#include "reduce.cuh"
#include "shared.cuh"

// How rows are spread over threads; chosen on the host (backends/cuda_rows.py).
//   kBytes    one access of one thread
//   kThreads  of a block; kLanes of them share a row, so a block has kThreads / kLanes rows
//   kVectors  of a row that one thread keeps
//   kRagged   rows that do not all begin on kBytes
//   kBlocks   resident on a multiprocessor at once: the registers a thread may have follow from it
template <int kBytes_, int kThreads_, int kLanes_, int kVectors_, bool kRagged_, int kBlocks_>
struct RowPlan {
  static constexpr int kBytes = kBytes_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kLanes = kLanes_;
  static constexpr int kVectors = kVectors_;
  static constexpr bool kRagged = kRagged_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kGroups = kThreads / kLanes;
  static_assert(kLanes <= 32 ? 32 % kLanes == 0 : kLanes == kThreads && kLanes % 32 == 0,
                "a row belongs to a part of one warp or to the whole block");
};

// A run of columns of one row. `base` of every access is the first element of a matrix that begins
// on a vector; matrices of one shape are cut alike.
template <typename T, int kWidth, bool kRagged>
struct Row {
  long long start;  // of the run, in elements from base
  int columns;      // 0 where the thread has no row: then it loads zeros and stores nothing
  int lead;

  __device__ Row(long long start, int columns)
      : start(start), columns(columns), lead(kRagged ? static_cast<int>(start % kWidth) : 0) {}

  __device__ int vectors() const { return columns ? (columns + lead + kWidth - 1) / kWidth : 0; }

  // Column of the first element of a vector: negative where the vector begins before the run.
  __device__ int column(int vector) const { return vector * kWidth - lead; }

  __device__ bool has(int column) const {
    return static_cast<unsigned int>(column) < static_cast<unsigned int>(columns);
  }

  __device__ bool whole(int vector) const {
    if constexpr (kRagged) return column(vector) >= 0 && column(vector) + kWidth <= columns;
    return column(vector) < columns;
  }

  template <Reuse kReuse>
  __device__ Vector<T, kWidth> load(const T* base, int vector) const {
    const T* p = base + start + column(vector);
    if (whole(vector)) return ::load<kReuse, kWidth>(p);
    Vector<T, kWidth> values;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = from_float<T>(0.0f);
      if constexpr (kRagged) {
        if (has(column(vector) + i)) values[i] = ::load<kReuse, 1>(p + i)[0];
      }
    }
    return values;
  }

  template <Reuse kReuse>
  __device__ void store(T* base, int vector, const Vector<T, kWidth>& values) const {
    T* p = base + start + column(vector);
    if (whole(vector)) {
      ::store<kReuse>(p, values);
    } else if constexpr (kRagged) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (has(column(vector) + i)) ::store<kReuse>(p + i, Vector<T, 1>{{values[i]}});
      }
    }
  }

  // A parameter of every row, one per column, begins on a vector itself: where the row does not, the
  // two are out of step and the parameter is gathered by elements, from L1.
  __device__ Vector<T, kWidth> load_parameter(const T* parameter, int vector) const {
    if constexpr (kRagged) {
      Vector<T, kWidth> values;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int c = column(vector) + i;
        values[i] = from_float<T>(0.0f);
        if (has(c)) values[i] = ::load<Reuse::kSoon, 1>(parameter + c)[0];
      }
      return values;
    } else {
      return load<Reuse::kSoon>(parameter - start, vector);
    }
  }
};

// Sums over the threads of a row, the same bits in each of them. Within a warp by shuffles; across
// warps through shared memory, every thread adding the warps in the same order. Two sets of slots
// in turn, so that one barrier per sum is enough.
template <int kLanes>
class RowSum {
  static constexpr int kWarps = (kLanes + kWarp - 1) / kWarp;
  static constexpr int kSlots = kWarps + 1;

 public:
  static constexpr int kFloats = 2 * kSlots;  // of shared memory, for a row of several warps

  __device__ explicit RowSum(float* slots) : slots_(slots) {}

  // On the way `word` of the row's first thread is given to all of them.
  __device__ float operator()(float value, float& word) {
    value = reduce_lanes<Sum, kLanes < kWarp ? kLanes : kWarp>(value);
    if constexpr (kLanes <= kWarp) {
      word = __shfl_sync(kWholeWarp, word, 0, kLanes);
      return value;
    } else {
      float* const now = slots_ + turn_ * kSlots;
      turn_ ^= 1;
      if (threadIdx.x % kWarp == 0) now[threadIdx.x / kWarp] = value;
      if (threadIdx.x == 0) now[kWarps] = word;
      __syncthreads();
      float total = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) total += now[warp];
      word = now[kWarps];
      return total;
    }
  }

  __device__ float operator()(float value) {
    float unused = 0.0f;
    return (*this)(value, unused);
  }

 private:
  float* slots_;
  int turn_ = 0;
};
