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
  using Values = Vector<T, kWidth>;
  long long element, byte;
  int pixel;
  bool there;
  int row_bytes;

  __device__ Masked(const Pieces<T, Plan>& pieces, int k, int row_bytes)
      : pixel(pieces.vector[k] * kWidth), row_bytes(row_bytes) {
    there = pixel < pieces.columns[k];
    element = pieces.plane[k] * pieces.columns[k] + pixel;
    byte = pieces.plane[k] * row_bytes + pixel / 8;
  }
  __device__ Values load(const T* x) const {
    return there ? ::load<Reuse::kNever, kWidth>(x + element) : Values{};
  }
  // Bit i is that of pixel i of the vector.
  __device__ unsigned int load_bits(const unsigned char* mask) const {
    if (!there) return 0u;
    return ::load<Reuse::kNever, 1>(mask + byte)[0] >> (kWidth == 1 ? pixel % 8 : 0);
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
    Vector<T, kWidth> x_v[Plan::kVectors], residual_v[Plan::kVectors];
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
      Vector<T, kWidth> out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float norm = to_float(from_float<T>(of.pre(to_float(x_v[k][i]))));
        const float pre = norm + to_float(residual_v[k][i]);
        bits |= static_cast<unsigned int>(!(pre <= 0.0f)) << i;
        out[i] = from_float<T>(pre < 0.0f ? 0.0f : pre);
      }
      if (at.there) store<kStores>(y + at.element, out);
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
    Vector<T, kWidth> dy_v[Plan::kVectors], x_v[Plan::kVectors];
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
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = bits[k] >> i & 1u ? to_float(dy_v[k][i]) : 0.0f;
        sums[0] += g;
        sums[1] += g * of.xhat(to_float(x_v[k][i]));
      }
    }
  });
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
    Vector<T, kWidth> dy_v[Plan::kVectors], x_v[Plan::kVectors];
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
      Vector<T, kWidth> passed, out;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        passed[i] = bits[k] >> i & 1u ? dy_v[k][i] : from_float<T>(0.0f);
        out[i] = from_float<T>(
            slopes[0].gradient(scales[0], to_float(passed[i]), to_float(x_v[k][i])));
      }
      if (!at.there) continue;
      store<kStores>(dresidual + at.element, passed);
      store<kStores>(dx + at.element, out);
    }
  });
}
