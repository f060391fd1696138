// y = max(batch_norm(x) + residual, 0) of NCHW images, which keeps one bit per element for
// backward.
//
// Bits are [images * channels, row_bytes]: pixel i of a plane is bit i % 8 of its byte i / 8. A
// thread has the eight pixels of a byte; where planes are not whole bytes, it has one, a warp has
// 32 in a row, and a ballot collects them.
//
// The norm is rounded to T before the residual is added, as it is where layers run apart.
#pragma once

#include "channel_first.cuh"

// One vector of a thread: kWidth pixels, 8 or 1.
template <typename T, class Plan>
struct Masked {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  static_assert(kWidth == 8 || kWidth == 1, "a byte of bits, or a bit");
  using Values = decltype(held(Vector<T, kWidth>()));
  long long element, byte;
  int pixel;
  bool there;
  int row_bytes;

  __device__ Masked(const Pieces<T, Plan>& pieces, int k, int row_bytes)
      : pixel(pieces.vector[k] * kWidth), row_bytes(row_bytes) {
    there = pieces.there[k] && (kWidth == 8 || pixel < pieces.pixels);
    element = pieces.start[k];
    byte = kWidth == 8 ? element / 8 : pieces.plane[k] * row_bytes + pixel / 8;
  }
  __device__ Values load(const T* x) const {
    Values values = {};
    if (there) values = held(::load<Reuse::kNever, kWidth>(x + element));
    return values;
  }
  // Bit i is that of pixel i of the vector.
  __device__ unsigned int load_bits(const unsigned char* mask) const {
    if (!there) return 0u;
    return ::load<Reuse::kNever, 1>(mask + byte)[0] >> (kWidth == 1 ? pixel % 8 : 0);
  }
  // What passes of a vector, 0 elsewhere: word by word, where there are eight bits.
  static __device__ Values passing(const Values& values, unsigned int bits) {
    if constexpr (kWidth == 8) {
      // Bits 0 to 3 become the signs of four bytes, and so do bits 4 to 7.
      const unsigned int low = (bits & 15u) * 0x10204080u, high = (bits >> 4) * 0x10204080u;
      Values passed;
      pass<0>(low, values, passed);
      pass<Values::kWords / 2>(high, values, passed);
      return passed;
    } else {
      return bits & 1u ? values : Values{};
    }
  }
  template <int kFirst>
  static __device__ void pass(unsigned int signs, const Values& values, Values& passed) {
    const auto word = [&](int i, unsigned int mask) {
      passed.words[kFirst + i] = values.words[kFirst + i] & mask;
    };
    if constexpr (sizeof(T) == 2) {
      word(0, signs_of_bytes<0x1100>(signs));
      word(1, signs_of_bytes<0x3322>(signs));
    } else {
      word(0, signs_of_bytes<0x0000>(signs));
      word(1, signs_of_bytes<0x1111>(signs));
      word(2, signs_of_bytes<0x2222>(signs));
      word(3, signs_of_bytes<0x3333>(signs));
    }
  }
  // By all threads of a warp.
  template <Reuse kStores>
  __device__ void store_bits(unsigned char* mask, unsigned int bits) const {
    if constexpr (kWidth == 8) {
      if (there) put<kStores>(mask + byte, bits);
    } else {
      bits = __ballot_sync(kWholeWarp, there && bits);
      const int lane = threadIdx.x % kWarp;
      // The first pixel of the warp is that of lane 0, which is there if any is.
      const bool any = __shfl_sync(kWholeWarp, static_cast<int>(there), 0) != 0;
      const int of_plane = (pixel - lane) / 8 + lane;
      if (any && lane < 4 && of_plane < row_bytes) {
        put<kStores>(mask + byte - pixel / 8 + of_plane, bits >> 8 * lane);
      }
    }
  }
  template <Reuse kStores>
  static __device__ void put(unsigned char* to, unsigned int bits) {
    store<kStores>(to, Vector<unsigned char, 1>{{static_cast<unsigned char>(bits)}});
  }
};

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    masked_forward(const T* x, const T* residual, T* y, unsigned char* mask, const float* weight,
                   const float* bias, const float* mean, const float* rstd, long long images,
                   int channels, int pixels, int shift, int vectors, long long each,
                   int row_bytes) {
  constexpr int kWidth = Masked<T, Plan>::kWidth;
  const ChannelShare<T, Plan, true> share{images, channels, pixels, shift, vectors, each};
  const ChannelScale of = ChannelParameters{weight, bias, mean, rstd, -1.0f}.of(share.channel());
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Masked<T, Plan>::Values x_v[Plan::kVectors], residual_v[Plan::kVectors];
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const Masked<T, Plan> at(pieces, k, row_bytes);
      x_v[k] = at.load(x);
      residual_v[k] = at.load(residual);
    }
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const Masked<T, Plan> at(pieces, k, row_bytes);
      unsigned int bits = 0u;
      float out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[i] = of.pre(value_of(x_v[k], i));
      const auto norm = held(from_floats<T>(out));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float pre = value_of(norm, i) + value_of(residual_v[k], i);
        bits |= static_cast<unsigned int>(!(pre <= 0.0f)) << i;
        out[i] = pre < 0.0f ? 0.0f : pre;
      }
      if (at.there) store<kStores>(y + at.element, from_floats<T>(out));
      at.template store_bits<kStores>(mask, bits);
    }
  });
}

// partials: sums of g and of g * xhat, [2, shares, channels]; g = dy where the bit is set.
template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    masked_sums(const T* dy, const T* x, const unsigned char* mask, float* partials,
                const float* weight, const float* mean, const float* rstd, long long images,
                int channels, int pixels, int shift, int vectors, long long each, int row_bytes) {
  constexpr int kWidth = Masked<T, Plan>::kWidth;
  const ChannelShare<T, Plan, false> share{images, channels, pixels, shift, vectors, each};
  const ChannelScale of = ChannelParameters{weight, nullptr, mean, rstd, -1.0f}.of(share.channel());
  float sums[2] = {0.0f, 0.0f};
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Masked<T, Plan>::Values dy_v[Plan::kVectors], x_v[Plan::kVectors];
    unsigned int bits[Plan::kVectors];
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const Masked<T, Plan> at(pieces, k, row_bytes);
      dy_v[k] = at.load(dy);
      x_v[k] = at.load(x);
      bits[k] = at.load_bits(mask);
    }
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const auto passed = Masked<T, Plan>::passing(dy_v[k], bits[k]);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = value_of(passed, i);
        sums[0] += g;
        sums[1] += g * (value_of(x_v[k], i) - of.mean);
      }
    }
  });
  sums[1] *= of.rstd;
  leave_sums<Plan>(sums, partials);
}

// dresidual = g. means: of g and of g * xhat, [2, channels].
template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    masked_backward(const T* dy, const T* x, const unsigned char* mask, T* dx, T* dresidual,
                    const float* means, const float* weight, const float* mean, const float* rstd,
                    long long images, int channels, int pixels, int shift, int vectors,
                    long long each, int row_bytes) {
  constexpr int kWidth = Masked<T, Plan>::kWidth;
  const ChannelShare<T, Plan, true> share{images, channels, pixels, shift, vectors, each};
  ChannelScale scales[1];
  ChannelSlopes slopes[1];
  ChannelParameters{weight, nullptr, mean, rstd, -1.0f}.of(share.channel(), scales);
  ChannelSlopes::of(means, channels, share.channel(), scales, slopes);
  share.walk([&](const Pieces<T, Plan>& pieces) {
    typename Masked<T, Plan>::Values dy_v[Plan::kVectors], x_v[Plan::kVectors];
    unsigned int bits[Plan::kVectors];
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const Masked<T, Plan> at(pieces, k, row_bytes);
      dy_v[k] = at.load(dy);
      x_v[k] = at.load(x);
      bits[k] = at.load_bits(mask);
    }
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const Masked<T, Plan> at(pieces, k, row_bytes);
      const auto passed = Masked<T, Plan>::passing(dy_v[k], bits[k]);
      float out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        out[i] = slopes[0].gradient(scales[0], value_of(passed, i), value_of(x_v[k], i));
      }
      if (!at.there) continue;
      store<kStores>(dresidual + at.element, vector_of(passed));
      store<kStores>(dx + at.element, from_floats<T>(out));
    }
  });
}
