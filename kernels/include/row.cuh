// Rows of a matrix: how a row is cut into vectors, and sums over the threads that share it.
//
// A row is cut where memory is aligned, not where the row begins. With 4097 columns of bfloat16
// only every eighth row begins on 16 bytes; cut at the row, seven rows in eight would go by
// elements. Cut in memory, only the first and the last vector of a row can be partial:
//
//   memory   |........|........|........|........|      16-byte steps
//   row           |>>>>>>>>>>>>>>>>>>>>>>>|
//   vector   0     1        2        3                  lead = columns of vector 0 before the row
#pragma once

#include "memory.cuh"
#include "reduce.cuh"
#include "row_packed.cuh"
#include "shared.cuh"

// How rows are spread over threads; chosen on the host (backends/cuda_rows.py).
//   kBytes    one access of one thread
//   kThreads  of a block; kLanes of them share a row, so a block has kThreads / kLanes rows
//   kVectors  of a row that one thread keeps
//   kRagged   rows that do not all begin on kBytes
//   kBlocks   resident on a multiprocessor at once: the registers a thread may have follow from it
//   kCluster  blocks that share a row (row_cluster.cuh)
template <int kBytes_, int kThreads_, int kLanes_, int kVectors_, bool kRagged_, int kBlocks_,
          int kCluster_ = 1>
struct RowPlan {
  static constexpr int kBytes = kBytes_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kLanes = kLanes_;
  static constexpr int kVectors = kVectors_;
  static constexpr bool kRagged = kRagged_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kGroups = kThreads / kLanes;
  static_assert(kLanes <= 32 ? 32 % kLanes == 0 : kLanes == kThreads && kLanes % 32 == 0,
                "a row belongs to a part of one warp or to the whole block");
};

// A run of columns of one row. `base` of every access is the first element of a matrix, `shift`
// elements past a vector; matrices of one shape and shift are cut alike.
template <typename T, int kWidth, bool kRagged>
struct Row {
  using Values = Packed<T, kWidth>;
  static constexpr int kElements = kWidth;
  static constexpr bool kWhole = !kRagged;  // vectors are there as a whole, or not
  long long start;  // of the run, in elements from base
  int columns;      // 0 where the thread has no row: then it loads zeros and stores nothing
  int lead;

  __device__ Row(long long start, int columns, int shift)
      : start(start),
        columns(columns),
        lead(kRagged ? static_cast<int>((start + shift) % kWidth) : 0) {}

  __device__ int vectors() const { return (columns + lead + kWidth - 1) / kWidth; }

  // Column of the first element of a vector: negative where the vector begins before the run.
  __device__ int column(int vector) const { return vector * kWidth - lead; }

  __device__ bool whole(int vector) const {
    const int first = column(vector);
    if constexpr (kRagged) return first >= 0 && first + kWidth <= columns;
    return first < columns;
  }

  // `outside` is what stands where the vector reaches beyond the run.
  template <Reuse kReuse>
  __device__ Values load(const T* base, int vector, const Values& outside = Values::zeros()) const {
    const T* p = base + start + column(vector);
    if (whole(vector)) return Values::of(::load<kReuse, kWidth>(p));
    if constexpr (kRagged) {
      Vector<T, kWidth> values = outside.vector();
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (has(column(vector) + i)) values[i] = ::load<kReuse, 1>(p + i)[0];
      }
      return Values::of(values);
    }
    return outside;
  }

  template <Reuse kReuse>
  __device__ void store(T* base, int vector, const Values& values) const {
    T* p = base + start + column(vector);
    if (whole(vector)) {
      ::store<kReuse>(p, values.vector());
    } else if constexpr (kRagged) {
      const Vector<T, kWidth> elements = values.vector();
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (has(column(vector) + i)) ::store<kReuse>(p + i, Vector<T, 1>{{elements[i]}});
      }
    }
  }

  // Of a parameter that all rows share, one per column, in L1. It is cut where it is aligned
  // itself: where the row is out of step, two of its vectors are loaded and spliced.
  __device__ Values load_parameter(const T* parameter, int parameter_shift, int vector) const {
    const Row own(0, columns, parameter_shift);
    if constexpr (kRagged) {
      const int at = column(vector) + own.lead + kWidth;  // never negative
      const int first = at / kWidth - 1;
      const Values low = own.template load<Reuse::kSoon>(parameter, first);
      const Values high = own.template load<Reuse::kSoon>(parameter, first + 1);
      return splice(low, high, at % kWidth);
    }
    return own.template load<Reuse::kSoon>(parameter, vector);
  }

  // Whether an element of a vector is one of the run, and how many are.
  __device__ bool holds(int vector, int i) const {
    if constexpr (kRagged) return has(column(vector) + i);
    return column(vector) < columns;
  }
  __device__ int elements(int vector) const {
    if constexpr (!kRagged) return column(vector) < columns ? kWidth : 0;
    const int begin = max(column(vector), 0), end = min(column(vector) + kWidth, columns);
    return max(end - begin, 0);
  }

  // Whether a column of some vector is one of the run.
  __device__ bool has(int column) const {
    return static_cast<unsigned int>(column) < static_cast<unsigned int>(columns);
  }
};

// Reductions over the threads of a row, the same bits in each of them. Within a warp by shuffles;
// across warps through shared memory, every thread combining the warps in the same order. Two sets
// of slots in turn, so that one barrier per reduction is enough. Up to kMost values at once share
// that barrier.
template <int kLanes, int kMost = 1>
class RowReduction {
  static constexpr int kWarps = (kLanes + kWarp - 1) / kWarp;

 public:
  static constexpr int kFloats = 2 * kMost * kWarps;  // of shared memory

  __device__ explicit RowReduction(float* slots) : slots_(slots) {}

  template <class Reduction, int kValues>
  __device__ void all(float (&values)[kValues]) {
    static_assert(kValues <= kMost, "there are slots for kMost values");
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = reduce_lanes<Reduction, kLanes < kWarp ? kLanes : kWarp>(values[i]);
    }
    if constexpr (kLanes > kWarp) {
      float* const now = slots_ + turn_ * kMost * kWarps;
      turn_ ^= 1;
      if (threadIdx.x % kWarp == 0) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) now[i * kWarps + threadIdx.x / kWarp] = values[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        values[i] = Reduction::identity();
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
          values[i] = Reduction::apply(values[i], now[i * kWarps + warp]);
        }
      }
    }
  }

  template <class Reduction>
  __device__ float of(float value) {
    float values[1] = {value};
    all<Reduction>(values);
    return values[0];
  }

 private:
  float* slots_;
  int turn_ = 0;
};

template <int kLanes>
class RowSum : public RowReduction<kLanes> {
 public:
  using RowReduction<kLanes>::RowReduction;
  __device__ float operator()(float value) { return this->template of<Sum>(value); }
};
