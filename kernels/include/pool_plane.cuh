// Planes (one channel of one image, NCHW) as rows of `area` elements: one number per plane is made of
// its elements, or goes to all of them.
//
// plane_map: y = f(plane's number, x) over one contiguous run of all planes.
// 1. A block per plane: planes of 7x7 are 98 bytes, and begin anywhere.
// 2. Elementwise over everything: vectors are cut where memory is aligned, and a vector may lie in two
//    planes. A thread finds its plane once, in 64 bits, and the planes of its elements by a
//    comparison; where planes are smaller than a vector, by a division each.
// 3. How many planes a vector may lie in is known when it is compiled: none but the first is looked
//    for where planes are whole vectors.
//
// plane_sums: the float32 sum of every plane, or of one share of it.
// 1. A thread per plane: consecutive lanes a plane apart.
// 2. kLanes threads per plane (from 8 to the block), kLoads vectors asked for before the first is
//    added; then shuffles, in a fixed order. A plane may begin anywhere: elements before its first
//    aligned address and after its last whole vector go one by one.
#pragma once

#include "elementwise.cuh"
#include "pool_axis.cuh"
#include "reduce.cuh"
#include "row.cuh"

// Planes that a vector may lie in.
enum class PlanesOfVector { kOne, kTwo, kMany };

// One tile of plane_map. An operation has number(plane), and apply(number, x), or apply(number) where
// there is no x.
template <class Operation, PlanesOfVector kPlanes, Reuse kStores, typename T>
struct PlaneTile {
  Operation operation;
  Divider plane_of;
  int area;
  long long first_plane;
  int before;  // elements of the first plane that come before the tile
  int length;
  T* y;

  // Planes have fewer than 2^30 elements, so that `before + i` stays below 2^31.
  __device__ float number(int i) const {
    return operation.number(first_plane + plane_of(before + i));
  }

  template <typename... Elements>
  __device__ void one(int i, const Elements&... in) const {
    const float value = operation.apply(number(i), to_float(in[0])...);
    store<kStores>(y + i, Vector<T, 1>{{from_float<T>(value)}});
  }

  template <int kWidth, typename... Vectors>
  __device__ void whole(int i, const Vectors&... in) const {
    Vector<T, kWidth> out;
    if constexpr (kPlanes == PlanesOfVector::kOne) {
      const float own = number(i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        out[e] = from_float<T>(operation.apply(own, to_float(in[e])...));
      }
    } else if constexpr (kPlanes == PlanesOfVector::kTwo) {
      const int plane = plane_of(before + i);
      const int rest = (plane + 1) * area - (before + i);  // elements of this plane from i on
      const float own = operation.number(first_plane + plane);
      const float next = rest < kWidth ? operation.number(first_plane + plane + 1) : own;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        out[e] = from_float<T>(operation.apply(e < rest ? own : next, to_float(in[e])...));
      }
    } else {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        out[e] = from_float<T>(operation.apply(number(i + e), to_float(in[e])...));
      }
    }
    store<kStores>(y + i, out);
  }

  template <int kWidth, int kLoads, typename... Loaded>
  __device__ void vectors(int first, int stride, const Loaded&... in) const {
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = first + k * stride;
      if (i + kWidth <= length) whole<kWidth>(i, in.at[k]...);
    }
  }
};

template <class Operation, PlanesOfVector kPlanes, int kBytes, int kLoads, Reuse kStores, typename T,
          typename... Inputs>
__global__ void plane_map(T* y, const T* numbers, long long n, int area, int channels,
                          unsigned long long by_area, const Inputs*... inputs) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const int stride = blockDim.x * kWidth;
  const int tile = stride * kLoads;
  const long long start = tile_start(blockIdx.x, tile);
  const int length = n - start < tile ? static_cast<int>(n - start) : tile;
  const PlaneTile<Operation, kPlanes, kStores, T> own{{numbers, channels, area},
                                                      {by_area},
                                                      area,
                                                      start / area,
                                                      static_cast<int>(start % area),
                                                      length,
                                                      y + start};
  int done = 0;
  if ((aligned<kBytes>(y) && ... && aligned<kBytes>(inputs))) {
    const int first = threadIdx.x * kWidth;
    own.template vectors<kWidth, kLoads>(
        first, stride,
        load_vectors<kWidth, kLoads, false>(inputs + start, first, stride, length)...);
    done = length - length % kWidth;
  }
  for (int i = done + threadIdx.x; i < length; i += blockDim.x) {
    own.one(i, load<Reuse::kNever, 1>(inputs + start + i)...);
  }
}

// sums: [images * shares, channels] where `shares` blocks have a plane together; scaled by `scale`.
template <int kBytes, int kLanes, int kLoads, int kThreads, typename S, typename T>
__global__ void __launch_bounds__(kThreads, 2)  // else the compiler spills to have one block more
    plane_sums(S* sums, const T* x, long long planes, int area, int channels, int shares, int shift,
               float scale) {
  constexpr int kWidth = elements_in<T, kBytes>();
  constexpr int kGroups = kThreads / kLanes;
  const long long item = static_cast<long long>(blockIdx.x) * kGroups + threadIdx.x / kLanes;
  const long long plane = item / shares;
  const int share = static_cast<int>(item % shares);
  const int each = (area + shares - 1) / shares;
  const int begin = share * each;
  const int length = plane < planes ? max(min(area - begin, each), 0) : 0;
  const Row<T, kWidth, true> run(plane * area + begin, length, shift);
  const int lane = threadIdx.x % kLanes;
  float sum = 0.0f;
  for (int v = lane; v < run.vectors(); v += kLoads * kLanes) {
    Packed<T, kWidth> in[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int vector = v + k * kLanes;
      in[k] = vector < run.vectors() ? run.template load<Reuse::kNever>(x, vector)
                                     : Packed<T, kWidth>::zeros();
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += in[k][i];
    }
  }
  sum = sum_threads<kLanes, kThreads>(sum);
  if (lane == 0 && plane < planes) {
    const long long row = plane / channels * shares + share;
    store<Reuse::kSoon>(sums + row * channels + plane % channels,
                        Vector<S, 1>{{from_float<S>(sum * scale)}});
  }
}
