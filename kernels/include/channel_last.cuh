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
  using Values = decltype(held(Vector<T, kWidth>()))[Plan::kRows];
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

  long long begin_row = share * each + group;
  long long end_row = (share + 1) * each < rows ? (share + 1) * each : rows;
  long long stride = static_cast<long long>(groups) * channels;  // from one row to the next

  __device__ int shares() const { return gridDim.x / tiles; }
  __device__ long long at(long long row) const { return row * channels + channel; }
  // How many rows of the thread there are from this one on, up to kRows.
  __device__ int rows_from(long long row) const {
    if (!active || row >= end_row) return 0;
    const long long left = (end_row - row + groups - 1) / groups;
    return left < Plan::kRows ? static_cast<int>(left) : Plan::kRows;
  }

  // visit(at, count): `count` rows from the element `at` on, `stride` apart. While there are kRows
  // of them that is known where `visit` is inlined, so that neither loads nor sums ask.
  template <class Visit>
  __device__ void walk(long long row, const Visit& visit) const {
    if (!active) return;
    long long element = at(row);
    for (; row + (Plan::kRows - 1) * groups < end_row; row += Plan::kRows * groups) {
      visit(element, Plan::kRows);
      element += Plan::kRows * stride;
    }
    if (row < end_row) visit(element, rows_from(row));
  }
  template <class Visit>
  __device__ void walk(const Visit& visit) const {
    walk(begin_row, visit);
  }

  template <Reuse kReuse>
  __device__ void load(const T* x, long long element, int count, Values& values) const {
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r < count) values[r] = held(::load<kReuse, kWidth>(x + element + r * stride));
    }
  }
};

// Moments of kWidth neighbouring channels, which have as many values each: sums of what is left of
// them, and of its squares, beyond a shift. The shift is the mean of the first rows, so that no sum
// is much larger than what it says: of n rows, squares are at most n times what remains of them.
template <int kWidth>
struct NeighbourMoments {
  int count = 0;
  float shift[kWidth] = {};
  float sums[kWidth] = {};
  float squares[kWidth] = {};

  // Before the first ones are added. Equal values, added by halves, are their own mean, exactly.
  template <int kRows, typename Values>
  __device__ void begin(const Values* values) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) shift[i] = sum_of<0, kRows>(values, i) * (1.0f / kRows);
  }
  template <int kRows, typename Values>
  __device__ void add(const Values* values) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float apart = value_of(values[r], i) - shift[i];
        sums[i] += apart;
        squares[i] += apart * apart;
      }
    }
    count += kRows;
  }
  // Into shift and squares: mean and squared deviations.
  __device__ void end() {
    const float share = reciprocal_fast(fmaxf(static_cast<float>(count), 1.0f));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float left = sums[i] * share;
      shift[i] += left;
      squares[i] = Moments::not_negative(squares[i] - sums[i] * left);
    }
  }
  template <int kFirst, int kCount, typename Values>
  static __device__ float sum_of(const Values* values, int i) {
    static_assert((kCount & (kCount - 1)) == 0, "a power of two");
    if constexpr (kCount == 1) {
      return value_of(values[kFirst], i);
    } else {
      return sum_of<kFirst, kCount / 2>(values, i) +
             sum_of<kFirst + kCount / 2, kCount / 2>(values, i);
    }
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
  long long row = share.begin_row;
  if (share.rows_from(row) == Plan::kRows) {
    typename Share::Values values;
    share.template load<Reuse::kNever>(x, share.at(row), Plan::kRows, values);
    moments.template begin<Plan::kRows>(values);
    moments.template add<Plan::kRows>(values);
    row += Plan::kRows * share.groups;
  }
  share.walk(row, [&](long long at, int count) {
    typename Share::Values values;
    share.template load<Reuse::kNever>(x, at, count, values);
    if (count == Plan::kRows) {
      moments.template add<Plan::kRows>(values);
      return;
    }
    if (moments.count == 0) moments.template begin<1>(values);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r < count) moments.template add<1>(values + r);
    }
  });
  moments.end();
  SHARED_ARRAY(float, means, Kept::kFloats);
  SHARED_ARRAY(float, deviations, Kept::kFloats);
  SHARED_ARRAY(float, counts, Plan::kThreads);
  const Kept mean_of{means, lanes}, deviations_of{deviations, lanes};
  mean_of.put(moments.shift);
  deviations_of.put(moments.squares);
  if (threadIdx.x % lanes == 0) counts[share.group] = static_cast<float>(moments.count);
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
  share.walk([&](long long at, int count) {
    typename Share::Values values;
    share.template load<Reuse::kNever>(x, at, count, values);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
      float out[Share::kWidth];
#pragma unroll
      for (int i = 0; i < Share::kWidth; ++i) {
        out[i] = F::apply(of[i].pre(value_of(values[r], i)));
      }
      store<kStores>(y + at + r * share.stride, from_floats<T>(out));
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
  float on_one[kWidth] = {}, on_apart[kWidth] = {};
  share.walk([&](long long at, int count) {
    typename Share::Values dy_v, x_v;
    share.template load<Reuse::kNever>(dy, at, count, dy_v);
    share.template load<Reuse::kNever>(x, at, count, x_v);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = channel_gradient<F>(of[i], value_of(dy_v[r], i), value_of(x_v[r], i));
        on_one[i] += g;
        on_apart[i] += g * (value_of(x_v[r], i) - of[i].mean);
      }
    }
  });
  SHARED_ARRAY(float, ones, Kept::kFloats);
  SHARED_ARRAY(float, xhats, Kept::kFloats);
  const Kept one_of{ones, lanes}, xhat_of{xhats, lanes};
#pragma unroll
  for (int i = 0; i < kWidth; ++i) on_apart[i] *= share.active ? of[i].rstd : 0.0f;
  one_of.put(on_one);
  xhat_of.put(on_apart);
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
  share.walk([&](long long at, int count) {
    typename Share::Values dy_v, x_v;
    share.template load<Reuse::kNever>(dy, at, count, dy_v);
    share.template load<Reuse::kNever>(x, at, count, x_v);
#pragma unroll
    for (int r = 0; r < Plan::kRows; ++r) {
      if (r >= count) continue;
      float out[Share::kWidth];
#pragma unroll
      for (int i = 0; i < Share::kWidth; ++i) {
        const float value = value_of(x_v[r], i);
        const float g = channel_gradient<F>(of[i], value_of(dy_v[r], i), value);
        out[i] = slopes[i].gradient(of[i], g, value);
      }
      store<kStores>(dx + at + r * share.stride, from_floats<T>(out));
    }
  });
}
