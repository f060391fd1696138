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
  using Vector = Packed<T, kWidth>;
  using Values = Vector[Plan::kVectors];
  using Segment = Row<T, kWidth, Plan::kRagged>;
  long long plane[Plan::kVectors];
  long long start[Plan::kVectors];  // of the vector; of its plane, where planes are ragged
  int vector[Plan::kVectors];       // of the plane
  bool there[Plan::kVectors];
  int pixels;
  int shift;

  __device__ Segment segment(int k) const {
    return Segment(start[k], there[k] ? pixels : 0, shift);
  }
  __device__ bool holds(int k, int i) const { return segment(k).holds(vector[k], i); }

  template <Reuse kReuse>
  __device__ void load(const T* x, Values& values) const {
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      if constexpr (Plan::kRagged) {
        values[k] = segment(k).template load<kReuse>(x, vector[k]);
      } else {
        values[k] = Vector::zeros();
        if (there[k]) values[k] = Vector::of(::load<kReuse, kWidth>(x + start[k]));
      }
    }
  }
  template <Reuse kReuse>
  __device__ void store(T* y, int k, const float (&values)[kWidth]) const {
    const Vector rounded = Vector::rounded(values);
    if constexpr (Plan::kRagged) {
      segment(k).template store<kReuse>(y, vector[k], rounded);
    } else if (there[k]) {
      ::store<kReuse>(y + start[k], rounded.vector());
    }
  }

  // As Moments::of, of vectors of several segments.
  __device__ Moments moments(const Values& values) const {
    int count = 0;
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) count += segment(k).elements(vector[k]);
    return Moments::of_some<kWidth>(count, values,
                                    [&](int k, int i) { return holds(k, i); });
  }
};

// The share of one block, of images [images, channels, pixels]. kReversed: the shares from the
// last.
template <typename T, class Plan, bool kReversed>
struct ChannelShare {
  // From one vector of a plane to the next, as `start` counts them.
  static constexpr int kElements = Plan::kRagged ? 0 : Pieces<T, Plan>::kWidth;
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

  // Steps over the share: where a thread is, without a division or a product a step.
  struct Cursor {
    int left;  // vectors of the share, from the block's next one on
    long long plane, start;
    int vector;
    __device__ int of_thread() const {
      return (left - static_cast<int>(threadIdx.x) + Plan::kThreads - 1) / Plan::kThreads;
    }
  };
  __device__ Cursor begin() const {
    const long long first = block() / channels * each, all = images * vectors;
    const long long image = (first + threadIdx.x) / vectors;
    const long long plane = image * channels + channel();
    const int vector = static_cast<int>(first + threadIdx.x - image * vectors);
    return {static_cast<int>(first + each < all ? each : all - first), plane,
            plane * pixels + vector * kElements, vector};
  }
  __device__ Pieces<T, Plan> next(Cursor& at) const {
    const long long planes_on = static_cast<long long>(Plan::kThreads / vectors) * channels;
    const int vectors_on = Plan::kThreads % vectors;
    const long long start_on = planes_on * pixels + vectors_on * kElements;
    const long long start_over = static_cast<long long>(channels) * pixels - vectors * kElements;
    Pieces<T, Plan> pieces;
    pieces.pixels = pixels;
    pieces.shift = shift;
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      pieces.plane[k] = at.plane;
      pieces.start[k] = at.start;
      pieces.vector[k] = at.vector;
      pieces.there[k] = static_cast<int>(threadIdx.x) + k * Plan::kThreads < at.left;
      at.plane += planes_on;
      at.start += start_on;
      at.vector += vectors_on;
      if (at.vector >= vectors) {
        at.vector -= vectors;
        at.plane += channels;
        at.start += start_over;
      }
    }
    at.left -= Plan::kThreads * Plan::kVectors;
    return pieces;
  }

  template <class Visit>
  __device__ void walk(Cursor at, const Visit& visit) const {
    while (at.left > 0) visit(next(at));
  }
  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    walk(begin(), visit);
  }
};

// Of vectors that are there or not, as a whole: sums of what is left of their values, and of its
// squares, beyond the mean of the thread's first vector. So no sum is much larger than what it
// says: of n vectors, squares are at most n times what remains of them. A value costs a conversion
// and three operations; nothing is divided or merged before the end.
template <typename T, class Plan>
struct ShiftedSums {
  using Of = Pieces<T, Plan>;
  static constexpr int kWidth = Of::kWidth;
  float shift = 0.0f, sum = 0.0f, squares = 0.0f;

  __device__ void begin(const typename Of::Values& values) {
    shift = sum_of<0, kWidth>(values[0]) * (1.0f / kWidth);
  }
  __device__ void add(const Of& pieces, const typename Of::Values& values) {
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      float left = 0.0f, square = 0.0f;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float apart = values[k][i] - shift;
        left += apart;
        square += apart * apart;
      }
      if (!pieces.there[k]) continue;
      sum += left;
      squares += square;
    }
  }
  // vectors: how many were there.
  __device__ Moments moments(int vectors) const {
    Moments moments;
    moments.count = static_cast<float>(vectors) * kWidth;
    const float left = sum * reciprocal_fast(fmaxf(moments.count, 1.0f));
    moments.mean = shift + left;
    moments.deviations = Moments::not_negative(squares - sum * left);
    return moments;
  }
  // By halves: as many equal values as a power of two have themselves as their mean, exactly.
  template <int kFirst, int kCount>
  static __device__ float sum_of(const typename Of::Vector& values) {
    if constexpr (kCount == 1) return values[kFirst];
    else return sum_of<kFirst, kCount / 2>(values) +
                sum_of<kFirst + kCount / 2, kCount / 2>(values);
  }
};

template <typename T, class Plan, class Share>
__device__ Moments moments_of(const Share& share, const T* x) {
  typename Pieces<T, Plan>::Values values;
  if constexpr (Plan::kRagged) {
    Moments moments;
    share.walk([&](const Pieces<T, Plan>& pieces) {
      pieces.template load<Reuse::kNever>(x, values);
      moments.merge(pieces.moments(values));
    });
    return moments;
  } else {
    ShiftedSums<T, Plan> sums;
    auto at = share.begin();
    const int vectors = at.of_thread();
    const auto first = share.next(at);
    first.template load<Reuse::kNever>(x, values);
    sums.begin(values);
    sums.add(first, values);
    share.walk(at, [&](const Pieces<T, Plan>& pieces) {
      pieces.template load<Reuse::kNever>(x, values);
      sums.add(pieces, values);
    });
    return sums.moments(vectors);
  }
}

// partials: count, mean and squared deviations, [3, shares, channels].
template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_first_moments(const T* x, float* partials, long long images, int channels, int pixels,
                          int shift, int vectors, long long each) {
  const ChannelShare<T, Plan, false> share{images, channels, pixels, shift, vectors, each};
  const Moments moments = moments_of<T, Plan>(share, x);
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
        sums[1] += g * (x_v[k][i] - of.mean);
      }
    }
  });
  sums[1] *= of.rstd;
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
