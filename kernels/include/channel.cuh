// Normalization by channel, forward and backward: what does not depend on the layout of the images.
//
//   forward    y = f((x - mean) * rstd * weight + bias)
//   backward   dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd * weight     g = dy * f'
//              dweight = sum of g * xhat      dbias = sum of g
//
// A channel is spread over all images, so that a block cannot normalize what it has read:
//
// 1. A block per channel reads it twice, and 64 channels keep half of a device idle.
// 2. Sums of x and x^2, added by atomics: E[x^2] - E[x]^2 cancels, and the order changes every
//    time.
// 3. Blocks are channels times shares of their values. One kernel leaves the moments of each share
//    (count, mean, squared deviations: Chan), or its two sums; a small one merges the shares in a
//    fixed order; the third reads the images again. Forward moves 3 passes, backward 5.
// 4. The third kernel takes the shares in reverse: it begins with what the first one read last,
//    which is still in the cache.
//
// Partial results are [values, shares, channels] of float32.
//
// f is a struct with apply(pre) and gradient(dy, pre). With kLinear pre is not needed in backward.
// pre is one subtraction and one fused multiply-add, so that every kernel agrees on its sign to the
// bit.
#pragma once

#include "math.cuh"
#include "row_moments.cuh"

struct Unchanged {
  static constexpr bool kLinear = true;
  static __device__ float apply(float pre) { return pre; }
  static __device__ float gradient(float dy, float) { return dy; }
};

// Of one channel: what turns its values into xhat and into pre.
struct ChannelScale {
  float mean, rstd, scale, bias;
  __device__ float xhat(float x) const { return (x - mean) * rstd; }
  __device__ float pre(float x) const { return fmaf(x - mean, scale, bias); }
};

// Of N neighbouring channels. 16 bytes at a time on every architecture, so that machine code shows
// the images, which stream, as its widest accesses.
template <int N>
__device__ Vector<float, N> load_parameters(const float* p) {
#ifndef MEMBOUND_EMULATOR
  if constexpr (N > 4) {
    Vector<float, N> made;
#pragma unroll
    for (int i = 0; i < N; ++i) made[i] = load<Reuse::kSoon, 4>(p + i / 4 * 4)[i % 4];
    return made;
  }
#endif
  return load<Reuse::kSoon, N>(p);
}

// Float32 values per channel, in L1 or L2.
struct ChannelParameters {
  const float* weight;
  const float* bias;  // nullptr where nothing needs it
  const float* mean;
  const float* rstd;  // or the variance, where eps is not negative
  float eps;

  // Of N neighbouring channels.
  template <int N>
  __device__ void of(int channel, ChannelScale (&made)[N]) const {
    const auto mean_of = load_parameters<N>(mean + channel);
    const auto kept = load_parameters<N>(rstd + channel);
    const auto weight_of = load_parameters<N>(weight + channel);
    Vector<float, N> bias_of = {};
    if (bias != nullptr) bias_of = load_parameters<N>(bias + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float root = eps < 0.0f ? kept[i] : rsqrt_fast(kept[i] + eps);
      made[i] = {mean_of[i], root, root * weight_of[i], bias_of[i]};
    }
  }
  __device__ ChannelScale of(int channel) const {
    ChannelScale made[1];
    of(channel, made);
    return made[0];
  }
};

template <class F>
__device__ float channel_gradient(const ChannelScale& of, float dy, float x) {
  return F::kLinear ? dy : F::gradient(dy, of.pre(x));
}

// What backward subtracts: the part of g along 1, and along x - mean.
struct ChannelSlopes {
  float on_one, on_apart;

  // Of N neighbouring channels. means: of g and of g * xhat, [2, channels].
  template <int N>
  static __device__ void of(const float* means, int channels, int channel,
                            const ChannelScale (&scales)[N], ChannelSlopes (&made)[N]) {
    const auto one = load_parameters<N>(means + channel);
    const auto xhat = load_parameters<N>(means + channels + channel);
#pragma unroll
    for (int i = 0; i < N; ++i) made[i] = {one[i], xhat[i] * scales[i].rstd};
  }
  __device__ float gradient(const ChannelScale& of, float g, float x) const {
    return (g - on_one - (x - of.mean) * on_apart) * of.scale;
  }
};

// Reductions over the rows of threads of a block, column by column; one value a time.
template <int kColumns, int kRows>
struct ColumnReduction {
  float* shared;  // kColumns * kRows

  template <class Reduction>
  __device__ float of(float value) {
    shared[threadIdx.x] = value;
    __syncthreads();
    value = Reduction::identity();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      value = Reduction::apply(value, shared[row * kColumns + threadIdx.x % kColumns]);
    }
    __syncthreads();  // the next one writes `shared` again
    return value;
  }
  template <class Reduction, int kValues>
  __device__ void all(float (&values)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = of<Reduction>(values[i]);
  }
};

// Merges the moments of all shares. A block owns kColumns channels; its rows of threads take every
// kRows-th share.
template <int kColumns, int kRows>
__global__ void channel_statistics(const float* partials, const float* running_mean,
                                   const float* running_var, float* updated_mean,
                                   float* updated_var, float* mean, float* rstd, int shares,
                                   int channels, float momentum, float eps) {
  SHARED_ARRAY(float, shared, kColumns * kRows);
  const int channel = blockIdx.x * kColumns + threadIdx.x % kColumns;
  const int first = threadIdx.x / kColumns;
  const long long plane = static_cast<long long>(shares) * channels;
  Moments moments;
  if (channel < channels) {
#pragma unroll 2
    for (int share = first; share < shares; share += kRows) {
      const float* const at = partials + static_cast<long long>(share) * channels + channel;
      Moments one;
      one.count = load<Reuse::kNever, 1>(at)[0];
      one.mean = load<Reuse::kNever, 1>(at + plane)[0];
      one.deviations = load<Reuse::kNever, 1>(at + 2 * plane)[0];
      moments.merge(one);
    }
  }
  ColumnReduction<kColumns, kRows> reduction{shared};
  const float count = reduction.template of<Sum>(moments.count);
  float of_all, variance;
  moments.over(reduction, 1.0f / fmaxf(count, 1.0f), of_all, variance);
  if (first != 0 || channel >= channels) return;
  const auto put = [&](float* to, float value) {
    store<Reuse::kSoon>(to + channel, Vector<float, 1>{{value}});
  };
  const auto moved = [&](const float* running, float now) {
    return (1.0f - momentum) * load<Reuse::kSoon, 1>(running + channel)[0] + momentum * now;
  };
  put(mean, of_all);
  put(rstd, rsqrt_fast(variance + eps));
  put(updated_mean, moved(running_mean, of_all));
  put(updated_var, moved(running_var, variance * (count / (count - 1.0f))));
}

// Adds the two sums of all shares: the gradients of the parameters, and the means over `count`
// values that dx needs, [2, channels].
template <int kColumns, int kRows>
__global__ void channel_gradients(const float* partials, float* dweight, float* dbias, float* means,
                                  int shares, int channels, float inverse_count) {
  SHARED_ARRAY(float, shared, kColumns * kRows);
  const int channel = blockIdx.x * kColumns + threadIdx.x % kColumns;
  const int first = threadIdx.x / kColumns;
  const long long plane = static_cast<long long>(shares) * channels;
  float sums[2] = {0.0f, 0.0f};
  if (channel < channels) {
#pragma unroll 4
    for (int share = first; share < shares; share += kRows) {
      const float* const at = partials + static_cast<long long>(share) * channels + channel;
      sums[0] += load<Reuse::kNever, 1>(at)[0];
      sums[1] += load<Reuse::kNever, 1>(at + plane)[0];
    }
  }
  ColumnReduction<kColumns, kRows> reduction{shared};
  reduction.template all<Sum>(sums);
  if (first != 0 || channel >= channels) return;
  const auto put = [&](float* to, float value) {
    store<Reuse::kSoon>(to + channel, Vector<float, 1>{{value}});
  };
  put(dbias, sums[0]);
  put(dweight, sums[1]);
  put(means, sums[0] * inverse_count);
  put(means + channels, sums[1] * inverse_count);
}
