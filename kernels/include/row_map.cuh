// Rows that become rows: each is reduced to a few numbers and rewritten with them. This is the
// skeleton of softmax, layer_norm and l2_norm, forward and backward. A body states the arithmetic:
//
//   Loaded, Kept                  one vector as it is loaded, and as it waits for the result
//   Span cut(n)                   row n, a Cut: empty beyond the last; `read` and `written` may differ
//   Loaded load<kReuse>(cut, v)   Kept keep(loaded)
//   early(n)                      numbers of row n that memory holds, asked for with it
//   State; add(state, cut, first, stride, kept[])    what a thread gathers of its vectors
//   Result reduce(state, early, reduction)           the same for every thread of the row; its
//                                                    positive() is never below zero
//   write(cut, v, kept, result)   finish(n, result)  the second by one thread of the row
//   row(...)                      rows in registers: `reduce_and_write`, or something better
//
// A body that is Placed states instead of keep(loaded) and of the first, empty State:
//
//   Kept keep(cut, v, loaded)     told which vector it is: it may write it, too
//   Kept again(cut, v)            the same of a row that is read a second time
//   State begin(early)
#pragma once

#include "row.cuh"

template <typename T, int kWidth, bool kRagged, bool kReadRagged = kRagged>
struct Cut {
  Row<T, kWidth, kReadRagged> read;
  Row<T, kWidth, kRagged> written;
};

// A vector of each of two matrices.
template <typename T, int kWidth>
struct Two {
  Packed<T, kWidth> a, b;
  __device__ void hide(unsigned int zero) {
    a.hide(zero);
    b.hide(zero);
  }
};

struct Nothing {};

struct Placed {};

template <class Body, class Cut, class Loaded>
__device__ typename Body::Kept keep(const Body& body, const Cut& cut, int v, const Loaded& loaded) {
  if constexpr (__is_base_of(Placed, Body)) return body.keep(cut, v, loaded);
  else return body.keep(loaded);
}

template <class Body, class Cut>
__device__ typename Body::Kept again(const Body& body, const Cut& cut, int v) {
  if constexpr (__is_base_of(Placed, Body)) return body.again(cut, v);
  else return body.keep(body.template load<Reuse::kSoon>(cut, v));
}

template <class Body, class Early>
__device__ typename Body::State begin(const Body& body, const Early& early) {
  if constexpr (__is_base_of(Placed, Body)) return body.begin(early);
  else return {};
}

template <typename T, int kWidth, bool kRagged>
__device__ Cut<T, kWidth, kRagged> whole_row(long long n, long long rows, int columns, int shift) {
  const Row<T, kWidth, kRagged> row(n * columns, n < rows ? columns : 0, shift);
  return {row, row};
}

// What bodies have in common that reduce the rows of one matrix, and keep them as they are.
template <typename T, class Plan>
struct OneMatrix {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Span = Cut<T, kWidth, Plan::kRagged>;
  using Loaded = Packed<T, kWidth>;
  using Kept = Loaded;
  const T* x;
  long long rows;
  int columns;
  int shift;  // elements that matrices begin past a vector

  __device__ Span cut(long long n) const {
    return whole_row<T, kWidth, Plan::kRagged>(n, rows, columns, shift);
  }
  __device__ Nothing early(long long) const { return {}; }
  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return cut.read.template load<kReuse>(x, v);
  }
  __device__ const Kept& keep(const Loaded& loaded) const { return loaded; }
};

// Rows that fit in registers. Where there are registers for it (kAhead), the next row is asked for
// before this one is reduced, so that a block always has loads on their way.
template <class Plan, class Body>
__device__ void rows_in_registers(const Body& body) {
  using Reduction = RowReduction<Plan::kLanes, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  const int lane = threadIdx.x % Plan::kLanes;
  const int group = threadIdx.x / Plan::kLanes;
  const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
  constexpr bool kAhead = Plan::kVectors * Plan::kBytes <= 32 && !Plan::kRagged;

  typename Body::Loaded next[Plan::kVectors];
  const auto fetch = [&](const typename Body::Span& cut) {
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      next[k] = body.template load<Reuse::kNever>(cut, k * Plan::kLanes + lane);
    }
  };
  long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups;
  decltype(body.early(first)) next_early;
  if (kAhead) next_early = body.early(first + group);
  if (kAhead) fetch(body.cut(first + group));
  // Counted by the block's first row, so that a warp stays whole for its shuffles.
  for (; first < body.rows; first += step) {
    const long long n = first + group;
    const auto cut = body.cut(n);
    if (!kAhead) fetch(cut);
    typename Body::Kept values[Plan::kVectors];
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      values[k] = keep(body, cut, k * Plan::kLanes + lane, next[k]);
    }
    const auto early = kAhead ? next_early : body.early(n);
    if (kAhead) next_early = body.early(n + step);
    if (kAhead) fetch(body.cut(n + step));
    body.template row<Plan>(n, cut, lane, values, early, reduction);
  }
}

// kHides: what the compiler has unpacked for the result is unpacked again behind it.
template <class Plan, bool kHides = true, class Body, class Cut, class Early, class Reduction>
__device__ void reduce_and_write(const Body& body, long long n, const Cut& cut, int lane,
                                 typename Body::Kept (&values)[Plan::kVectors], const Early& early,
                                 Reduction& reduction) {
  auto state = begin(body, early);
  body.add(state, cut, lane, Plan::kLanes, values);
  const auto result = body.reduce(state, early, reduction);
  const unsigned int zero = runtime_zero(result.positive());
#pragma unroll
  for (int k = 0; k < Plan::kVectors; ++k) {
    if constexpr (kHides) values[k].hide(zero);
    body.write(cut, k * Plan::kLanes + lane, values[k], result);
  }
  if (lane == 0 && n < body.rows) body.finish(n, result);
}

template <class Plan, class Body>
__device__ void rows_in_cluster(const Body& body);  // row_cluster.cuh

// Longer rows: kVectors at a time. The row waits in shared memory for its result; one that does not
// fit there is read again (kStaged false), from the cache if that is large enough. A thread reads
// back what it wrote itself, so no barrier stands between. A cluster keeps what one block cannot.
template <class Plan, bool kStaged, class Body>
__device__ void rows_in_steps(const Body& body) {
  if constexpr (Plan::kCluster > 1) return rows_in_cluster<Plan>(body);
  using Kept = typename Body::Kept;
  using Reduction = RowReduction<Plan::kLanes, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  Kept* const staged = dynamic_shared<Kept>();
  constexpr int kStep = Plan::kThreads * Plan::kVectors;

  for (long long n = blockIdx.x; n < body.rows; n += gridDim.x) {
    const auto cut = body.cut(n);
    const auto early = body.early(n);
    auto state = begin(body, early);
    for (int base = threadIdx.x; base < cut.read.vectors(); base += kStep) {
      typename Body::Loaded loaded[Plan::kVectors];
      Kept values[Plan::kVectors];
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        loaded[k] = body.template load<kStaged ? Reuse::kNever : Reuse::kSoon>(
            cut, base + k * Plan::kThreads);
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = base + k * Plan::kThreads;
        values[k] = keep(body, cut, v, loaded[k]);
        if (kStaged && v < cut.read.vectors()) staged[v] = values[k];
      }
      body.add(state, cut, base, Plan::kThreads, values);
    }
    const auto result = body.reduce(state, early, reduction);
    for (int base = threadIdx.x; base < cut.written.vectors(); base += kStep) {
      Kept values[Plan::kVectors];
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = base + k * Plan::kThreads;
        if (kStaged && v < cut.read.vectors()) {
          values[k] = staged[v];
        } else {  // what lies outside of the row is not loaded either way
          values[k] = again(body, cut, v);
        }
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        body.write(cut, base + k * Plan::kThreads, values[k], result);
      }
    }
    if (threadIdx.x == 0) body.finish(n, result);
  }
}

#include "row_cluster.cuh"
