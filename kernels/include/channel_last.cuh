// Channels of NHWC images: rows of channels, as many as there are pixels in all images.
//
// A thread keeps a vector of neighbouring channels and walks down the rows of its block's share,
// kRows of them in flight together. Rows shorter than a block lie beside one another in it
// (groups); longer ones are cut into tiles. Channels that are not whole vectors go by elements.
#pragma once

#include "channel.cuh"

// Chosen on the host (backends/cuda_channel.py). kBytes: one access. kRows: in flight in a thread.
template <int kBytes_, int kThreads_, int kRows_, int kBlocks_>
struct LastPlan {
  static constexpr int kBytes = kBytes_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kRows = kRows_;
  static constexpr int kBlocks = kBlocks_;
};

// The rows and the channels of one block, of images [rows, channels]; lanes: threads of a row.
template <typename T, class Plan, bool kReversed>
struct LastShare {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Values = Vector<T, kWidth>[Plan::kRows];
  long long rows;
  int channels;
  int lanes;
  long long each;  // rows of a share
  int block = kReversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  int tile = lanes * kWidth;
  int tiles = (channels + tile - 1) / tile;
  int share = block / tiles;
  int begin = block % tiles * tile;
  int groups = Plan::kThreads / lanes;
  int group = threadIdx.x / lanes;
  int channel = begin + threadIdx.x % lanes * kWidth;  // the first of the thread
  bool active = group < groups && channel < channels;

  __device__ int shares() const { return gridDim.x / tiles; }

  // visit(row, count): rows row, row + groups, … of which `count` are there, up to kRows.
  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    const long long begin = share * each;
    const long long end = begin + each < rows ? begin + each : rows;
    if (!active) return;
    for (long long row = begin + group; row < end; row += groups * Plan::kRows) {
      const long long left = (end - row + groups - 1) / groups;
      visit(row, left < Plan::kRows ? static_cast<int>(left) : Plan::kRows);
    }
  }

  __device__ long long at(long long row, int r) const {
    return (row + r * groups) * channels + channel;
  }
  template <Reuse kReuse>
  __device__ void load(const T* x, long long row, int count, Values& values) const {
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r < count) values[r] = ::load<kReuse, kWidth>(x + at(row, r));
    }
  }
};

// Moments of kWidth neighbouring channels, which have as many values each.
template <int kWidth>
struct NeighbourMoments {
  float count = 0.0f;
  float mean[kWidth] = {};
  float deviations[kWidth] = {};

  // Of kRows rows from the first-th on. Two or four equal values have them as their mean, exactly.
  template <int kRows, typename Values>
  __device__ void add(const Values& values, int first) {
    static_assert((kRows & (kRows - 1)) == 0, "a power of two");
    const float all = count + kRows;
    const float share = count == 0.0f ? 1.0f : kRows * reciprocal_fast(all);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float sum = 0.0f, squares = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum += to_float(values[first + r][i]);
      const float middle = sum * (1.0f / kRows);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float deviation = to_float(values[first + r][i]) - middle;
        squares += deviation * deviation;
      }
      const float apart = middle - mean[i];
      mean[i] += apart * share;
      deviations[i] += squares + apart * apart * count * share;
    }
    count = all;
  }
};

// Values of the groups of a block, by channel: thread t leaves kWidth of them, one per channel;
// then `at(group, c)` is that of channel c of the tile. Padded so that neither meets the same bank
// twice.
template <int kWidth, int kThreads>
struct GroupValues {
  static constexpr int kPitch = kThreads + 32 / kWidth;
  static constexpr int kFloats = kPitch * kWidth;
  float* shared;
  int lanes;

  __device__ void put(const float (&values)[kWidth]) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) shared[i * kPitch + threadIdx.x] = values[i];
  }
  __device__ float at(int group, int c) const {
    return shared[c % kWidth * kPitch + group * lanes + c / kWidth];
  }
};

// partials: count, mean and squared deviations, [3, shares, channels].
template <typename T, class Plan>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_last_moments(const T* x, float* partials, long long rows, int channels, int lanes,
                         long long each) {
  using Share = LastShare<T, Plan, false>;
  constexpr int kWidth = Share::kWidth;
  using Kept = GroupValues<kWidth, Plan::kThreads>;
  const Share share{rows, channels, lanes, each};
  NeighbourMoments<kWidth> moments;
  share.walk([&](long long row, int count) {
    typename Share::Values values;
    share.template load<Reuse::kNever>(x, row, count, values);
    if (count == Plan::kRows) {
      moments.template add<Plan::kRows>(values, 0);
    } else {
#pragma unroll
      for (int r = 0; r < Plan::kRows; ++r) {
        if (r < count) moments.template add<1>(values, r);
      }
    }
  });
  SHARED_ARRAY(float, means, Kept::kFloats);
  SHARED_ARRAY(float, deviations, Kept::kFloats);
  SHARED_ARRAY(float, counts, Plan::kThreads);
  const Kept mean_of{means, lanes}, deviations_of{deviations, lanes};
  mean_of.put(moments.mean);
  deviations_of.put(moments.deviations);
  if (threadIdx.x % lanes == 0) counts[share.group] = moments.count;
  __syncthreads();
  const long long plane = static_cast<long long>(share.shares()) * channels;
  for (int c = threadIdx.x; c < share.tile && share.begin + c < channels; c += Plan::kThreads) {
    Moments all;
    for (int group = 0; group < share.groups; ++group) {
      Moments one;
      one.count = counts[group];
      one.mean = mean_of.at(group, c);
      one.deviations = deviations_of.at(group, c);
      all.merge(one);
    }
    const float values[3] = {all.count, all.mean, all.deviations};
    float* const to = partials + static_cast<long long>(share.share) * channels + share.begin + c;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      store<Reuse::kSoon>(to + i * plane, Vector<float, 1>{{values[i]}});
    }
  }
}

template <typename T, class Plan, Reuse kStores, class F, bool kReversed>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_last_forward(const T* x, T* y, const float* weight, const float* bias,
                         const float* mean, const float* rstd, float eps, long long rows,
                         int channels, int lanes, long long each) {
  using Share = LastShare<T, Plan, kReversed>;
  const Share share{rows, channels, lanes, each};
  const ChannelParameters parameters{weight, bias, mean, rstd, eps};
  ChannelScale of[Share::kWidth];
  if (share.active) parameters.of(share.channel, of);
  share.walk([&](long long row, int count) {
    typename Share::Values values;
    share.template load<Reuse::kNever>(x, row, count, values);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
      float out[Share::kWidth];
#pragma unroll
      for (int i = 0; i < Share::kWidth; ++i) {
        out[i] = F::apply(of[i].pre(to_float(values[r][i])));
      }
      store<kStores>(y + share.at(row, r), from_floats<T>(out));
    }
  });
}

// partials: sums of g and of g * xhat, [2, shares, channels].
template <typename T, class Plan, class F>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_last_sums(const T* dy, const T* x, float* partials, const float* weight,
                      const float* bias, const float* mean, const float* rstd, long long rows,
                      int channels, int lanes, long long each) {
  using Share = LastShare<T, Plan, false>;
  constexpr int kWidth = Share::kWidth;
  using Kept = GroupValues<kWidth, Plan::kThreads>;
  const Share share{rows, channels, lanes, each};
  const ChannelParameters parameters{weight, bias, mean, rstd, -1.0f};
  ChannelScale of[kWidth];
  if (share.active) parameters.of(share.channel, of);
  float on_one[kWidth] = {}, on_xhat[kWidth] = {};
  share.walk([&](long long row, int count) {
    typename Share::Values dy_v, x_v;
    share.template load<Reuse::kNever>(dy, row, count, dy_v);
    share.template load<Reuse::kNever>(x, row, count, x_v);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = channel_gradient<F>(of[i], to_float(dy_v[r][i]), to_float(x_v[r][i]));
        on_one[i] += g;
        on_xhat[i] += g * of[i].xhat(to_float(x_v[r][i]));
      }
    }
  });
  SHARED_ARRAY(float, ones, Kept::kFloats);
  SHARED_ARRAY(float, xhats, Kept::kFloats);
  const Kept one_of{ones, lanes}, xhat_of{xhats, lanes};
  one_of.put(on_one);
  xhat_of.put(on_xhat);
  __syncthreads();
  const long long plane = static_cast<long long>(share.shares()) * channels;
  for (int c = threadIdx.x; c < share.tile && share.begin + c < channels; c += Plan::kThreads) {
    float sums[2] = {0.0f, 0.0f};
    for (int group = 0; group < share.groups; ++group) {
      sums[0] += one_of.at(group, c);
      sums[1] += xhat_of.at(group, c);
    }
    float* const to = partials + static_cast<long long>(share.share) * channels + share.begin + c;
    store<Reuse::kSoon>(to, Vector<float, 1>{{sums[0]}});
    store<Reuse::kSoon>(to + plane, Vector<float, 1>{{sums[1]}});
  }
}

// means: of g and of g * xhat, [2, channels].
template <typename T, class Plan, Reuse kStores, class F>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    channel_last_backward(const T* dy, const T* x, T* dx, const float* means, const float* weight,
                          const float* bias, const float* mean, const float* rstd, long long rows,
                          int channels, int lanes, long long each) {
  using Share = LastShare<T, Plan, true>;
  const Share share{rows, channels, lanes, each};
  const ChannelParameters parameters{weight, bias, mean, rstd, -1.0f};
  ChannelScale of[Share::kWidth];
  ChannelSlopes slopes[Share::kWidth];
  if (share.active) {
    parameters.of(share.channel, of);
    ChannelSlopes::of(means, channels, share.channel, of, slopes);
  }
  share.walk([&](long long row, int count) {
    typename Share::Values dy_v, x_v;
    share.template load<Reuse::kNever>(dy, row, count, dy_v);
    share.template load<Reuse::kNever>(x, row, count, x_v);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
      float out[Share::kWidth];
#pragma unroll
      for (int i = 0; i < Share::kWidth; ++i) {
        const float value = to_float(x_v[r][i]);
        const float g = channel_gradient<F>(of[i], to_float(dy_v[r][i]), value);
        out[i] = slopes[i].gradient(of[i], g, value);
      }
      store<kStores>(dx + share.at(row, r), from_floats<T>(out));
    }
  });
}
