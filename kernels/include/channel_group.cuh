// Normalization by groups of channels, NCHW: a slab is what one sample has of one group, and it is
// contiguous: the planes (channels of one sample) of the group, one behind the other.
//
//   forward    y = (x - mean) * rstd * weight + bias    as rows are normalized (row_map.cuh)
//   backward   dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd      g = dy * weight, of a slab
//              dweight = sum of dy * xhat      dbias = sum of dy      over samples and pixels
//
// Backward
// 1. A block per slab that adds into dweight by atomics: the order changes every time.
// 2. Both sums of a plane are all that is needed of it: those of a slab are theirs, weighted, and
//    those of a channel are theirs, added over the samples. One kernel leaves them, two add them up
//    in a fixed order, the last reads dy and x again, from the end, where the cache has them.
#pragma once

#include "channel.cuh"
#include "column.cuh"

// What belongs to one channel: a slab, every vector, or nothing longer than an element.
enum class OneChannel { kSlab, kVector, kElement };

// Quotients by one divisor, of what is below 2^31: a product without its lowest bits (`quotient_by`
// in backends/cuda_channel_group.py).
struct Quotient {
  unsigned int multiplier;
  int bits;
  __device__ int of(int dividend) const {
    return static_cast<int>(static_cast<unsigned long long>(dividend) * multiplier >> bits);
  }
};

template <typename T, class Plan, Reuse kStores, OneChannel kOne>
struct GroupNormForward : LayerNormForward<T, Plan, kStores> {
  using Norm = LayerNormForward<T, Plan, kStores>;
  using typename Norm::Kept;
  using typename Norm::Span;
  using typename Norm::State;
  using Norm::kWidth;
  int groups, group_channels, pixels;
  Quotient by_groups, by_pixels;

  struct Result {
    float mean, rstd;
    int channel;         // the first of the group
    float scale, shift;  // its own
    __device__ float positive() const { return rstd; }
  };

  __device__ int early(long long n) const {
    const int slab = n < this->rows ? static_cast<int>(n) : 0;
    return (slab - by_groups.of(slab) * groups) * group_channels;
  }
  template <class Reduction>
  __device__ Result reduce(const State& state, int channel, Reduction& reduction) const {
    const auto of = Norm::reduce(state, Nothing{}, reduction);
    Result result = {of.mean, of.rstd, channel};
    if (kOne == OneChannel::kSlab) enter(result, 0, result.scale, result.shift);
    return result;
  }
  __device__ void enter(const Result& of, int plane, float& scale, float& shift) const {
    const int channel = of.channel + plane;
    scale = to_float(::load<Reuse::kSoon, 1>(this->weight + channel)[0]) * of.rstd;
    shift = to_float(::load<Reuse::kSoon, 1>(this->bias + channel)[0]);
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    int column = cut.written.column(v);
    if constexpr (Plan::kRagged) column = max(column, 0);
    if (column >= cut.written.columns) return;
    float scale = result.scale, shift = result.shift;
    int plane = 0, end = 0;  // of the plane, counted from the vector
    if constexpr (kOne != OneChannel::kSlab) {
      plane = by_pixels.of(column);
      end = (plane + 1) * pixels - cut.written.column(v);
      enter(result, plane, scale, shift);
    }
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      if constexpr (kOne != OneChannel::kElement) {
        const Pair made = (pair_at(values, i) - result.mean).times_plus(scale, shift);
        out[i] = made.first;
        out[i + 1] = made.second;
        continue;
      }
#pragma unroll
      for (int j = i; j < i + 2; ++j) {
        if (j == end) {
          end += pixels;
          if (++plane < group_channels) enter(result, plane, scale, shift);
        }
        out[j] = fmaf(values[j] - result.mean, scale, shift);
      }
    }
    cut.written.template store<kStores>(this->y, v, Kept::rounded(out));
  }

  __device__ void finish(long long n, const Result& result) const {
    Norm::finish(n, {result.mean, result.rstd});
  }
  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      int channel, Reduction& reduction) const {
    reduce_and_write<P, P::kRagged>(*this, n, cut, lane, values, channel, reduction);
  }
};

// Planes, [samples * channels, pixels]; kLanes threads have one, kVectors vectors in flight.
template <typename T, class Plan>
struct Planes {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Values = Packed<T, kWidth>[Plan::kVectors];
  using Segment = Row<T, kWidth, Plan::kRagged>;
  const T* dy;
  const T* x;
  const float* mean;  // of slabs
  const float* rstd;
  long long planes;
  int group_channels;
  int pixels;
  int shift;  // elements that dy, x and dx begin past a vector

  __device__ RowStatistics statistics(long long plane) const {
    const long long slab = plane / group_channels;
    return {load<Reuse::kSoon, 1>(mean + slab)[0], load<Reuse::kSoon, 1>(rstd + slab)[0]};
  }

  // visit(segment, vectors, dy, x): kVectors vectors of a plane.
  template <class Visit>
  __device__ void walk(long long plane, bool there, const Visit& visit) const {
    const Segment segment(plane * pixels, there ? pixels : 0, shift);
    const int lane = threadIdx.x % Plan::kLanes;
    for (int base = lane; base < segment.vectors(); base += Plan::kLanes * Plan::kVectors) {
      Values dy_v, x_v;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        dy_v[k] = segment.template load<Reuse::kNever>(dy, base + k * Plan::kLanes);
        x_v[k] = segment.template load<Reuse::kNever>(x, base + k * Plan::kLanes);
      }
      visit(segment, base, dy_v, x_v);
    }
  }
};

// ones, xhats: sums of dy and of dy * xhat, one per plane.
template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    plane_sums(const T* dy, const T* x, const float* mean, const float* rstd, float* ones,
               float* xhats, long long planes, int group_channels, int pixels, int shift) {
  using Values = typename Planes<T, Plan>::Values;
  using Segment = typename Planes<T, Plan>::Segment;
  const Planes<T, Plan> all{dy, x, mean, rstd, planes, group_channels, pixels, shift};
  using Reduction = RowReduction<Plan::kLanes, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
  for (long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups; first < planes;
       first += step) {
    const long long plane = first + threadIdx.x / Plan::kLanes;
    const bool there = plane < planes;
    const RowStatistics of = all.statistics(there ? plane : 0);
    float sums[2] = {0.0f, 0.0f};
    all.walk(plane, there, [&](const Segment&, int, const Values& dy_v, const Values& x_v) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
#pragma unroll
        for (int i = 0; i < all.kWidth; ++i) {
          sums[0] += dy_v[k][i];  // 0 beyond the plane
          sums[1] += dy_v[k][i] * of.xhat(x_v[k][i]);
        }
      }
    });
    reduction.template all<Sum>(sums);
    if (there && threadIdx.x % Plan::kLanes == 0) {
      store<Reuse::kSoon>(ones + plane, Vector<float, 1>{{sums[0]}});
      store<Reuse::kSoon>(xhats + plane, Vector<float, 1>{{sums[1]}});
    }
  }
}

// means: of g and of g * xhat over each slab, [2, slabs]. A warp per slab.
template <typename T>
__global__ void slab_means(const float* ones, const float* xhats, const T* weight, float* means,
                           long long slabs, int groups, int group_channels,
                           float inverse_elements) {
  const long long slab = static_cast<long long>(blockIdx.x) * (blockDim.x / kWarp) +
                         threadIdx.x / kWarp;
  if (slab >= slabs) return;  // the whole warp
  const long long first = slab * group_channels;
  const int channel = static_cast<int>(slab % groups) * group_channels;
  float sums[2] = {0.0f, 0.0f};
  for (int i = threadIdx.x % kWarp; i < group_channels; i += kWarp) {
    const float of = to_float(load<Reuse::kSoon, 1>(weight + channel + i)[0]);
    sums[0] += of * load<Reuse::kSoon, 1>(ones + first + i)[0];
    sums[1] += of * load<Reuse::kSoon, 1>(xhats + first + i)[0];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = reduce_lanes<Sum>(sums[i]);
    if (threadIdx.x % kWarp == 0) {
      store<Reuse::kSoon>(means + i * slabs + slab, Vector<float, 1>{{sum * inverse_elements}});
    }
  }
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    plane_backward(const T* dy, const T* x, const float* mean, const float* rstd, const T* weight,
                   const float* means, T* dx, long long planes, int group_channels, int pixels,
                   int shift, int channels) {
  using Values = typename Planes<T, Plan>::Values;
  using Segment = typename Planes<T, Plan>::Segment;
  constexpr int kWidth = Planes<T, Plan>::kWidth;
  const Planes<T, Plan> all{dy, x, mean, rstd, planes, group_channels, pixels, shift};
  const long long slabs = planes / group_channels;
  const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
  for (long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups; first < planes;
       first += step) {
    const long long plane = planes - 1 - first - threadIdx.x / Plan::kLanes;
    if (plane < 0) return;
    const RowStatistics of = all.statistics(plane);
    const float gamma = to_float(load<Reuse::kSoon, 1>(weight + plane % channels)[0]);
    const float* const at = means + plane / group_channels;
    const float on_one = load<Reuse::kSoon, 1>(at)[0];
    const float on_xhat = load<Reuse::kSoon, 1>(at + slabs)[0];
    all.walk(plane, true, [&](const Segment& segment, int base, const Values& dy_v,
                              const Values& x_v) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        float out[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          out[i] = (dy_v[k][i] * gamma - on_one - of.xhat(x_v[k][i]) * on_xhat) * of.rstd;
        }
        segment.template store<kStores>(dx, base + k * Plan::kLanes,
                                        Packed<T, kWidth>::rounded(out));
      }
    });
  }
}
