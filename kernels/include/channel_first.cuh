// Channels of NCHW images: every image has one run of pixels of a channel (a segment).
//
// A block walks over a share of the vectors of one channel, image after image; blocks that run
// together take neighbouring channels, so that what they read is contiguous. Segments that do not
// begin on a vector (55x57 pixels) are cut where memory is aligned (row.cuh).
#pragma once

#include "channel.cuh"

// Up to kVectors vectors of one thread, in flight together.
template <typename T, class Plan>
struct Pieces {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Values = Packed<T, kWidth>[Plan::kVectors];
  using Segment = Row<T, kWidth, Plan::kRagged>;
  long long plane[Plan::kVectors];
  int columns[Plan::kVectors];  // 0 where the thread has nothing
  int vector[Plan::kVectors];
  int shift;

  __device__ Segment segment(int k) const { return Segment(plane[k] * columns[k], columns[k], shift); }
  __device__ bool holds(int k, int i) const { return segment(k).holds(vector[k], i); }

  template <Reuse kReuse>
  __device__ void load(const T* x, Values& values) const {
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      values[k] = segment(k).template load<kReuse>(x, vector[k]);
    }
  }
  template <Reuse kReuse>
  __device__ void store(T* y, int k, const float (&values)[kWidth]) const {
    segment(k).template store<kReuse>(y, vector[k], Packed<T, kWidth>::rounded(values));
  }

  // Of vectors that are there or not, as a whole: without a predicate or a correction an element.
  // Added by halves, as many equal values as a power of two have themselves as their mean, exactly.
  __device__ Moments whole_moments(const Values& values) const {
    static_assert(Plan::kVectors == 2, "the second is there only if the first is");
    const bool first = columns[0] > 0, second = columns[1] > 0;
    Moments moments;
    moments.count = second ? 2 * kWidth : (first ? kWidth : 0);
    moments.mean = (sum_of<0, kWidth>(values[0]) + sum_of<0, kWidth>(values[1])) *
                   (second ? 0.5f / kWidth : 1.0f / kWidth);
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float deviation = values[k][i] - moments.mean;
        squares[k] += deviation * deviation;
      }
    }
    moments.deviations = first ? squares[0] + (second ? squares[1] : 0.0f) : 0.0f;
    return moments;
  }
  template <int kFirst, int kCount>
  static __device__ float sum_of(const Packed<T, kWidth>& values) {
    if constexpr (kCount == 1) return values[kFirst];
    else return sum_of<kFirst, kCount / 2>(values) +
                sum_of<kFirst + kCount / 2, kCount / 2>(values);
  }

  // As Moments::of, of vectors of several segments.
  __device__ Moments moments(const Values& values) const {
    if constexpr (!Plan::kRagged) return whole_moments(values);
    int count = 0;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      count += segment(k).elements(vector[k]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += values[k][i];  // 0 beyond the segment
    }
    Moments moments;
    moments.count = static_cast<float>(count);
    const float share = reciprocal_fast(fmaxf(moments.count, 1.0f));
    const float mean = sum * share;
    float left = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float deviation = holds(k, i) ? values[k][i] - mean : 0.0f;
        left += deviation;
        squares += deviation * deviation;
      }
    }
    moments.mean = mean + left * share;
    moments.deviations = Moments::not_negative(squares - left * left * share);
    return moments;
  }
};

// The share of one block, of images [images, channels, pixels]. kReversed: the shares from the
// last.
template <typename T, class Plan, bool kReversed>
struct ChannelShare {
  long long images;
  int channels;
  int pixels;
  int shift;    // elements that tensors begin past a vector
  int vectors;  // of a segment, at most
  long long each;  // vectors of a share

  __device__ unsigned int block() const {
    return kReversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  }
  __device__ int channel() const { return block() % channels; }

  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    const long long all = images * vectors;
    const long long begin = block() / channels * each;
    const long long end = begin + each < all ? begin + each : all;
    const int images_a_step = Plan::kThreads / vectors;
    const int vectors_a_step = Plan::kThreads % vectors;
    long long slot = begin + threadIdx.x;
    long long image = slot / vectors;
    int vector = static_cast<int>(slot - image * vectors);
    for (long long base = begin; base < end; base += Plan::kThreads * Plan::kVectors) {
      Pieces<T, Plan> pieces;
      pieces.shift = shift;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        pieces.plane[k] = image * channels + channel();
        pieces.columns[k] = slot < end ? pixels : 0;
        pieces.vector[k] = vector;
        slot += Plan::kThreads;
        image += images_a_step;
        vector += vectors_a_step;
        if (vector >= vectors) {
          vector -= vectors;
          ++image;
        }
      }
      visit(pieces);
    }
  }
};

// partials: count, mean and squared deviations, [3, shares, channels].
template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_first_moments(const T* x, float* partials, long long images, int channels, int pixels,
                          int shift, int vectors, long long each) {
  const ChannelShare<T, Plan, false> share{images, channels, pixels, shift, vectors, each};
  Moments moments;
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Pieces<T, Plan>::Values values;
    pieces.template load<Reuse::kNever>(x, values);
    moments.merge(pieces.moments(values));
  });
  using Reduction = RowReduction<Plan::kThreads, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  const float count = reduction.template of<Sum>(moments.count);
  float mean, variance;
  moments.over(reduction, reciprocal_fast(fmaxf(count, 1.0f)), mean, variance);
  if (threadIdx.x == 0) {
    const float values[3] = {count, mean, variance * count};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      store<Reuse::kSoon>(partials + static_cast<long long>(i) * gridDim.x + blockIdx.x,
                          Vector<float, 1>{{values[i]}});
    }
  }
}

template <typename T, class Plan, Reuse kStores, class F, bool kReversed>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_first_forward(const T* x, T* y, const float* weight, const float* bias,
                          const float* mean, const float* rstd, float eps, long long images,
                          int channels, int pixels, int shift, int vectors, long long each) {
  const ChannelShare<T, Plan, kReversed> share{images, channels, pixels, shift, vectors, each};
  const ChannelScale of = ChannelParameters{weight, bias, mean, rstd, eps}.of(share.channel());
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Pieces<T, Plan>::Values values;
    pieces.template load<Reuse::kNever>(x, values);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      float out[Pieces<T, Plan>::kWidth];
#pragma unroll
      for (int i = 0; i < Pieces<T, Plan>::kWidth; ++i) out[i] = F::apply(of.pre(values[k][i]));
      pieces.template store<kStores>(y, k, out);
    }
  });
}

// The sums of all threads of a block, into its places of partials, [2, shares, channels].
template <class Plan>
__device__ void leave_sums(float (&sums)[2], float* partials) {
  using Reduction = RowReduction<Plan::kThreads, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  reduction.template all<Sum>(sums);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store<Reuse::kSoon>(partials + static_cast<long long>(i) * gridDim.x + blockIdx.x,
                          Vector<float, 1>{{sums[i]}});
    }
  }
}

// partials: sums of g and of g * xhat, [2, shares, channels].
template <typename T, class Plan, class F>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_first_sums(const T* dy, const T* x, float* partials, const float* weight,
                       const float* bias, const float* mean, const float* rstd, long long images,
                       int channels, int pixels, int shift, int vectors, long long each) {
  const ChannelShare<T, Plan, false> share{images, channels, pixels, shift, vectors, each};
  const ChannelScale of = ChannelParameters{weight, bias, mean, rstd, -1.0f}.of(share.channel());
  float sums[2] = {0.0f, 0.0f};
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Pieces<T, Plan>::Values dy_v, x_v;
    pieces.template load<Reuse::kNever>(dy, dy_v);
    pieces.template load<Reuse::kNever>(x, x_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < Pieces<T, Plan>::kWidth; ++i) {
        // Beyond the segment dy is 0.
        const float g = channel_gradient<F>(of, dy_v[k][i], x_v[k][i]);
        sums[0] += g;
        sums[1] += g * of.xhat(x_v[k][i]);
      }
    }
  });
  leave_sums<Plan>(sums, partials);
}

// means: of g and of g * xhat, [2, channels].
template <typename T, class Plan, Reuse kStores, class F>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_first_backward(const T* dy, const T* x, T* dx, const float* means, const float* weight,
                           const float* bias, const float* mean, const float* rstd,
                           long long images, int channels, int pixels, int shift, int vectors,
                           long long each) {
  const ChannelShare<T, Plan, true> share{images, channels, pixels, shift, vectors, each};
  const int channel = share.channel();
  ChannelScale scales[1];
  ChannelSlopes slopes[1];
  ChannelParameters{weight, bias, mean, rstd, -1.0f}.of(channel, scales);
  ChannelSlopes::of(means, channels, channel, scales, slopes);
  const ChannelScale of = scales[0];
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Pieces<T, Plan>::Values dy_v, x_v;
    pieces.template load<Reuse::kNever>(dy, dy_v);
    pieces.template load<Reuse::kNever>(x, x_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      float out[Pieces<T, Plan>::kWidth];
#pragma unroll
      for (int i = 0; i < Pieces<T, Plan>::kWidth; ++i) {
        const float g = channel_gradient<F>(of, dy_v[k][i], x_v[k][i]);
        out[i] = slopes[0].gradient(of, g, x_v[k][i]);
      }
      pieces.template store<kStores>(dx, k, out);
    }
  });
}
