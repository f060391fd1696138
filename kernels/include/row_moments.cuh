// Layer normalization of rows, forward and backward, alone or with a residual add in front of it.
//
//   forward    h = x + residual, or x
//              y = (h - mean) * rstd * weight + bias      rstd = 1/sqrt(mean((h - mean)^2) + eps)
//   backward   dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd (+ dh)     g = dy * weight
//              dweight = sum over rows of dy * xhat      dbias = sum over rows of dy
//
// dh is null where kResidual is false. moments.cuh has the moments.
#pragma once

#include "column.cuh"
#include "moments.cuh"
#include "row_map.cuh"

template <typename T, class Plan, Reuse kStores>
struct LayerNormForward {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Span = Cut<T, kWidth, Plan::kRagged>;
  using Loaded = Packed<T, kWidth>;
  using Kept = Loaded;
  using State = Moments;
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  float* mean;
  float* rstd;
  long long rows;
  int columns;
  int shift, parameter_shift;  // elements that matrices, and parameters, begin past a vector
  float inverse_columns;
  float eps;

  struct Result {
    float mean, rstd;
    __device__ float positive() const { return rstd; }
  };

  __device__ Span cut(long long n) const {
    return whole_row<T, kWidth, Plan::kRagged>(n, rows, columns, shift);
  }
  __device__ Nothing early(long long) const { return {}; }
  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return cut.read.template load<kReuse>(x, v);
  }
  __device__ const Kept& keep(const Loaded& loaded) const { return loaded; }

  template <int kVectors>
  __device__ void add(State& state, const Span& cut, int first, int stride,
                      const Kept (&values)[kVectors]) const {
    state.merge(Moments::of(cut.read, first, stride, values));
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    float row_mean, variance;
    state.over(reduction, inverse_columns, row_mean, variance);
    return {row_mean, rsqrt_fast(variance + eps)};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    const auto gamma = cut.read.load_parameter(weight, parameter_shift, v);
    const auto beta = cut.read.load_parameter(bias, parameter_shift, v);
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      out[i] = (values[i] - result.mean) * result.rstd * gamma[i] + beta[i];
    }
    cut.written.template store<kStores>(y, v, Kept::rounded(out));
  }

  __device__ void finish(long long n, const Result& result) const {
    store<kStores>(mean + n, Vector<float, 1>{{result.mean}});
    store<kStores>(rstd + n, Vector<float, 1>{{result.rstd}});
  }

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      Nothing early, Reduction& reduction) const {
    // Whole vectors are unpacked once for their moments: nothing of that waits for the result.
    reduce_and_write<P, P::kRagged>(*this, n, cut, lane, values, early, reduction);
  }
};

// What a row's gradient needs of its statistics. xhat = x * rstd - mean * rstd would cancel.
struct RowStatistics {
  float mean, rstd;
  __device__ float xhat(float x) const { return (x - mean) * rstd; }
};

// mean(g * xhat) and mean(g).
struct Projections {
  float on_xhat, on_one;
};

template <typename T>
struct LayerNormBackward {
  const T* dy;
  const T* dh;
  const T* x;
  const T* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  float* partial_weight;  // of each block: [blocks, columns]
  float* partial_bias;
  long long rows;
  int columns;
  int shift, parameter_shift;
  float inverse_columns;

  __device__ RowStatistics statistics(long long n) const {
    if (n >= rows) return {0.0f, 0.0f};
    return {::load<Reuse::kSoon, 1>(mean + n)[0], ::load<Reuse::kSoon, 1>(rstd + n)[0]};
  }

  template <int kWidth>
  static __device__ void project(const Packed<T, kWidth>& dy, const Packed<T, kWidth>& x,
                                 const Packed<T, kWidth>& weight, const RowStatistics& row,
                                 float (&sums)[2]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = dy[i] * weight[i];
      sums[0] += g * row.xhat(x[i]);
      sums[1] += g;
    }
  }

  template <class Span, int kWidth, class Sums>
  static __device__ void accumulate(Sums& weight_sums, Sums& bias_sums, const Span& row, int k,
                                    int v, const RowStatistics& of_row,
                                    const Packed<T, kWidth>& dy, const Packed<T, kWidth>& x) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int column = row.column(v) + i;
      weight_sums.add(k, i, column, row.columns, dy[i] * of_row.xhat(x[i]));
      bias_sums.add(k, i, column, row.columns, dy[i]);
    }
  }

  template <bool kResidual, int kWidth>
  static __device__ Packed<T, kWidth> gradient(const Packed<T, kWidth>& dy,
                                               const Packed<T, kWidth>& dh,
                                               const Packed<T, kWidth>& x,
                                               const Packed<T, kWidth>& weight,
                                               const RowStatistics& row, const Projections& c) {
    float dx[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      dx[i] = (dy[i] * weight[i] - c.on_one - row.xhat(x[i]) * c.on_xhat) * row.rstd;
      if constexpr (kResidual) dx[i] += dh[i];
    }
    return Packed<T, kWidth>::rounded(dx);
  }

  // Sums of the same columns in shared memory, where they are there, one behind the other.
  template <class Plan, int kWidth>
  static __device__ float* second(float* shared) {
    constexpr int kFloats = ColumnSums<Plan, kWidth>::kBytes / static_cast<int>(sizeof(float));
    return shared + (Plan::kRagged ? kFloats : 0);
  }

  template <class Sums>
  __device__ void write_sums(Sums& weight_sums, Sums& bias_sums, long long at, int length) const {
    weight_sums.write(partial_weight + at, length);
    __syncthreads();  // aligned rows share the memory that groups are added in
    bias_sums.write(partial_bias + at, length);
  }

  // Rows that fit in registers: one pass. The sums over rows need no reduction of this row, so
  // they are added up before it, while other warps are still loading; its barrier also separates
  // the rows for sums in shared memory. Weights come from L1 twice a row: kept in registers they
  // would cost a resident block.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_registers() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Packed<T, kWidth>[Plan::kVectors];
    using Reduction = RowReduction<Plan::kLanes, 2>;
    SHARED_ARRAY(float, slots, Reduction::kFloats);
    Reduction reduction(slots);
    float* const shared = dynamic_shared<float>();
    ColumnSums<Plan, kWidth> weight_sums(shared), bias_sums(second<Plan, kWidth>(shared));

    const int lane = threadIdx.x % Plan::kLanes;
    const int group = threadIdx.x / Plan::kLanes;
    const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
    long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups;
    // Two blocks are all that fit beside the sums, so each asks for its next row early; where three
    // matrices are read, a row is enough on its way, and registers are not.
    constexpr bool kAhead =
        Plan::kVectors * Plan::kBytes <= 32 && !Plan::kRagged && !kResidual;
    const auto span = [&](long long n) {
      return Span(n * columns, n < rows ? columns : 0, shift);
    };
    Values next_dy, next_x;
    const auto fetch = [&](const Span& row) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        next_dy[k] = row.template load<Reuse::kNever>(dy, k * Plan::kLanes + lane);
        next_x[k] = row.template load<Reuse::kNever>(x, k * Plan::kLanes + lane);
      }
    };
    RowStatistics next;
    if (kAhead) next = statistics(first + group);
    if (kAhead) fetch(span(first + group));
    for (; first < rows; first += step) {
      const long long n = first + group;
      const Span row = span(n);
      if (!kAhead) fetch(row);
      const RowStatistics now = kAhead ? next : statistics(n);
      Values dy_v, dh_v, x_v;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        if constexpr (kResidual) {
          dh_v[k] = row.template load<Reuse::kNever>(dh, k * Plan::kLanes + lane);
        }
        dy_v[k] = next_dy[k];
        x_v[k] = next_x[k];
      }
      if (kAhead) next = statistics(n + step);
      if (kAhead) fetch(span(n + step));
      float sums[2] = {0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        const auto gamma = row.load_parameter(weight, parameter_shift, v);
        project(dy_v[k], x_v[k], gamma, now, sums);
        accumulate(weight_sums, bias_sums, row, k, v, now, dy_v[k], x_v[k]);
      }
      reduction.template all<Sum>(sums);
      weight_sums.end_of_row();
      const Projections c = {sums[0] * inverse_columns, sums[1] * inverse_columns};
      const unsigned int zero = runtime_zero(c.on_one * c.on_one);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        dy_v[k].hide(zero);
        x_v[k].hide(zero);
        const auto gamma = row.load_parameter(weight, parameter_shift, v);
        row.template store<kStores>(
            dx, v, gradient<kResidual>(dy_v[k], dh_v[k], x_v[k], gamma, now, c));
      }
    }
    write_sums(weight_sums, bias_sums, static_cast<long long>(blockIdx.x) * columns, columns);
  }

  // Rows that do not fit, first kernel: the projections of each row.
  template <class Plan>
  __device__ void projections(float* projected) const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Values = Packed<T, kWidth>[Plan::kVectors];
    using Reduction = RowReduction<Plan::kLanes, 2>;
    SHARED_ARRAY(float, slots, Reduction::kFloats);
    Reduction reduction(slots);
    for (long long n = blockIdx.x; n < rows; n += gridDim.x) {
      const Row<T, kWidth, Plan::kRagged> row(n * columns, columns, shift);
      const RowStatistics now = statistics(n);
      float sums[2] = {0.0f, 0.0f};
      for (int base = threadIdx.x; base < row.vectors(); base += Plan::kThreads * Plan::kVectors) {
        Values dy_v, x_v, gamma;
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          dy_v[k] = row.template load<Reuse::kNever>(dy, v);
          x_v[k] = row.template load<Reuse::kNever>(x, v);
          gamma[k] = row.load_parameter(weight, parameter_shift, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) project(dy_v[k], x_v[k], gamma[k], now, sums);
      }
      reduction.template all<Sum>(sums);
      if (threadIdx.x == 0) {
        const Vector<float, 2> both = {{sums[0] * inverse_columns, sums[1] * inverse_columns}};
        ::store<Reuse::kSoon>(projected + 2 * n, both);
      }
    }
  }

  // Second kernel: a block owns a tile of columns, keeps their sums and walks down its share of the
  // rows. Blocks are tile-major: those that run together read whole rows.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_tiles(const float* projected) const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Packed<T, kWidth>[Plan::kVectors];
    // One vector less where a tile may begin inside one.
    constexpr int kTile = (Plan::kThreads * Plan::kVectors - Plan::kRagged) * kWidth;
    float* const shared = dynamic_shared<float>();
    ColumnSums<Plan, kWidth> weight_sums(shared), bias_sums(second<Plan, kWidth>(shared));
    const int tiles = (columns + kTile - 1) / kTile;
    const int begin = blockIdx.x % tiles * kTile;
    const int length = columns - begin < kTile ? columns - begin : kTile;
    const int share = blockIdx.x / tiles;
    __syncthreads();  // the sums in shared memory are zero
    for (long long n = share; n < rows; n += gridDim.x / tiles) {
      const Span row(n * columns + begin, length, shift);
      const RowStatistics now = statistics(n);
      const auto both = ::load<Reuse::kSoon, 2>(projected + 2 * n);
      const Projections c = {both[0], both[1]};
      Values dy_v, dh_v, x_v, gamma;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kThreads + threadIdx.x;
        dy_v[k] = row.template load<Reuse::kNever>(dy, v);
        if constexpr (kResidual) dh_v[k] = row.template load<Reuse::kNever>(dh, v);
        x_v[k] = row.template load<Reuse::kNever>(x, v);
        gamma[k] = row.load_parameter(weight + begin, parameter_shift, v);
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kThreads + threadIdx.x;
        accumulate(weight_sums, bias_sums, row, k, v, now, dy_v[k], x_v[k]);
        row.template store<kStores>(
            dx, v, gradient<kResidual>(dy_v[k], dh_v[k], x_v[k], gamma[k], now, c));
      }
      if constexpr (Plan::kRagged) __syncthreads();  // the next row is cut elsewhere
    }
    write_sums(weight_sums, bias_sums, static_cast<long long>(share) * columns + begin, length);
  }
};
