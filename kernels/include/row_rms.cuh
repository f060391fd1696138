// RMSNorm of rows, forward and backward, alone or with a residual add in front of it.
//
//   forward    h = x + residual, or x    y = h * rstd * weight    rstd = 1/sqrt(mean(h^2) + eps)
//   backward   dx = (dy * weight - h * dot) * rstd (+ dh)     dot = rstd^2 * mean(dy * weight * h)
//              dweight = sum over rows of dy * h * rstd
//
// Pointers to the residual, to h in forward and to dh are null where kResidual is false. What becomes
// of y is up to an Output: kept as it is (RowOutput), or quantized (rms_quantize.cuh).
#pragma once

#include "column.cuh"
#include "math.cuh"
#include "row.cuh"

// Where y goes, as it is; rstd is saved for backward.
template <typename T>
struct RowOutput {
  static constexpr bool kSavesRstd = true;
  T* y;

  template <Reuse kStores, class Span, class Values>
  __device__ void write(const Span& row, int vector, const Values& values) const {
    row.template store<kStores>(y, vector, values);
  }
};

template <typename T, class Output = RowOutput<T>>
struct RmsForward {
  const T* x;
  const T* residual;
  const T* weight;
  T* h;
  Output y;
  float* rstd;
  long long rows;
  int columns;
  int shift, weight_shift;  // elements that matrices, and the weight, begin past a vector
  float inverse_columns;
  float eps;

  // h of one vector as it is stored, that is rounded: the norm is of what the next layer reads.
  template <int kWidth>
  static __device__ Packed<T, kWidth> add(const Packed<T, kWidth>& a, const Packed<T, kWidth>& b) {
    float sum[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = a[i] + b[i];
    return Packed<T, kWidth>::rounded(sum);
  }

  // In float32 before squaring: 300^2 is infinite in float16.
  template <int kWidth>
  static __device__ float squares(const Packed<T, kWidth>& h, float sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += h[i] * h[i];
    return sum;
  }

  __device__ float reciprocal_deviation(float sum) const {
    return rsqrt_fast(sum * inverse_columns + eps);
  }

  template <int kWidth>
  static __device__ Packed<T, kWidth> scaled(const Packed<T, kWidth>& h,
                                             const Packed<T, kWidth>& weight, float rstd) {
    float y[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = h[i] * rstd * weight[i];
    return Packed<T, kWidth>::rounded(y);
  }

  // Rows that fit in registers. Where there are registers for it (kAhead), the next row is asked
  // for before this one is reduced, so that a block always has loads on their way. Under them the
  // weight can come from L1 after the reduction, and costs no register during it.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_registers() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Packed<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);

    const int lane = threadIdx.x % Plan::kLanes;
    const int group = threadIdx.x / Plan::kLanes;
    const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
    const auto span = [&](long long row) {
      return Span(row * columns, row < rows ? columns : 0, shift);
    };
    Values next, added;
    const auto fetch = [&](const Span& row) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        next[k] = row.template load<Reuse::kNever>(x, v);
        if constexpr (kResidual) added[k] = row.template load<Reuse::kNever>(residual, v);
      }
    };

    constexpr bool kAhead = Plan::kVectors * Plan::kBytes <= 32 && !Plan::kRagged;
    long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups;
    if (kAhead) fetch(span(first + group));
    // Counted by the block's first row, so that a warp stays whole for its shuffles.
    for (; first < rows; first += step) {
      const Span row = span(first + group);
      if (!kAhead) fetch(row);
      Values values;
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        values[k] = next[k];
        if constexpr (kResidual) {
          values[k] = add(values[k], added[k]);
          row.template store<kStores>(h, k * Plan::kLanes + lane, values[k]);
        }
      }
      if (kAhead) fetch(span(first + group + step));
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) sum = squares(values[k], sum);
      const float r = reciprocal_deviation(row_sum(sum));
      hide(values, runtime_zero(r));
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        const auto gamma = row.load_parameter(weight, weight_shift, v);
        y.template write<kStores>(row, v, scaled(values[k], gamma, r));
      }
      if (Output::kSavesRstd && lane == 0 && row.columns) {
        ::store<kStores>(rstd + first + group, Vector<float, 1>{{r}});
      }
    }
  }

  // Longer rows: kVectors at a time. The row waits in shared memory for its statistic; one that
  // does not fit there is read again (kStaged false), from the cache if that is large enough.
  // A thread reads back what it wrote itself, so no barrier stands between.
  template <class Plan, bool kResidual, bool kStaged, Reuse kStores>
  __device__ void in_steps() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Values = Packed<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    Packed<T, kWidth>* const staged = dynamic_shared<Packed<T, kWidth>>();
    constexpr int kStep = Plan::kThreads * Plan::kVectors;

    for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
      const Row<T, kWidth, Plan::kRagged> row(r * columns, columns, shift);
      float sum = 0.0f;
      for (int base = threadIdx.x; base < row.vectors(); base += kStep) {
        Values values, added;
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          values[k] = row.template load<kStaged ? Reuse::kNever : Reuse::kSoon>(x, v);
          if constexpr (kResidual) added[k] = row.template load<Reuse::kNever>(residual, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          if constexpr (kResidual) {
            values[k] = add(values[k], added[k]);
            row.template store<kStaged ? kStores : Reuse::kSoon>(h, v, values[k]);
          }
          if (kStaged && v < row.vectors()) staged[v] = values[k];
          sum = squares(values[k], sum);
        }
      }
      const float deviation = reciprocal_deviation(row_sum(sum));
      // Counted by the block's first thread: an output may take whole warps.
      for (int begin = 0; begin < row.vectors(); begin += kStep) {
        const int base = begin + threadIdx.x;
        Values values, gamma;
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          if constexpr (!kStaged) {
            // h was written by this very thread: a plain load sees it.
            values[k] = row.template load<Reuse::kSoon>(kResidual ? h : x, v);
          } else if (v < row.vectors()) {
            values[k] = staged[v];
          }
          gamma[k] = row.load_parameter(weight, weight_shift, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          y.template write<kStores>(row, base + k * Plan::kThreads,
                                    scaled(values[k], gamma[k], deviation));
        }
      }
      if (Output::kSavesRstd && threadIdx.x == 0) {
        ::store<kStores>(rstd + r, Vector<float, 1>{{deviation}});
      }
    }
  }
};

template <typename T>
struct RmsBackward {
  const T* dy;
  const T* dh;
  const T* x;
  const T* weight;
  const float* rstd;
  T* dx;
  float* partials;  // dweight of each block: [blocks, columns]
  long long rows;
  int columns;
  int shift, weight_shift;  // elements that matrices, and the weight, begin past a vector
  float inverse_columns;

  template <int kWidth>
  static __device__ float dot(const Packed<T, kWidth>& dy, const Packed<T, kWidth>& x,
                              const Packed<T, kWidth>& weight, float sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += dy[i] * weight[i] * x[i];
    return sum;
  }

  // rstd^2 * mean(dy * weight * x), which is the same for a whole row.
  __device__ float projection(float sum, float r) const {
    return sum * inverse_columns * r * r;
  }

  // What one vector adds to dweight.
  template <class Span, int kWidth, class Sums>
  static __device__ void accumulate(Sums& sums, const Span& row, int k, int v, float r,
                                    const Packed<T, kWidth>& dy, const Packed<T, kWidth>& x) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sums.add(k, i, row.column(v) + i, row.columns, dy[i] * x[i] * r);
    }
  }

  template <bool kResidual, int kWidth>
  static __device__ Packed<T, kWidth> gradient(const Packed<T, kWidth>& dy,
                                               const Packed<T, kWidth>& dh,
                                               const Packed<T, kWidth>& x,
                                               const Packed<T, kWidth>& weight, float r, float c) {
    float dx[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      dx[i] = (dy[i] * weight[i] - x[i] * c) * r;
      if constexpr (kResidual) dx[i] += dh[i];
    }
    return Packed<T, kWidth>::rounded(dx);
  }

  // Rows that fit in registers: one pass. dweight needs no statistic but rstd, so it is added up
  // before the reduction, while other warps are still loading; the reduction's barrier also
  // separates the rows for the column sums. The weight comes from L1 twice a row: kept in
  // registers it would cost a resident block.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_registers() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Packed<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    ColumnSums<Plan, kWidth> sums(dynamic_shared<float>());

    const int lane = threadIdx.x % Plan::kLanes;
    const int group = threadIdx.x / Plan::kLanes;
    const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
    constexpr bool kDhEarly = Plan::kVectors * Plan::kBytes <= 32;  // else no registers are left
    Values dy_v, dh_v, x_v, gamma;
    // A row early: the compiler would sink the load to its use, behind the reduction.
    const auto rstd_of = [&](long long n) {
      return n < rows ? ::load<Reuse::kSoon, 1>(rstd + n)[0] : 0.0f;
    };
    float next_r = rstd_of(static_cast<long long>(blockIdx.x) * Plan::kGroups + group);
    for (long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups; first < rows;
         first += step) {
      const long long n = first + group;
      const Span row(n * columns, n < rows ? columns : 0, shift);
      const auto fetch_dh = [&] {
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          dh_v[k] = row.template load<Reuse::kNever>(dh, k * Plan::kLanes + lane);
        }
      };
      const float r = next_r;
      next_r = rstd_of(n + step);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        dy_v[k] = row.template load<Reuse::kNever>(dy, v);
        x_v[k] = row.template load<Reuse::kNever>(x, v);
      }
      if constexpr (kResidual && kDhEarly) fetch_dh();
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        gamma[k] = row.load_parameter(weight, weight_shift, k * Plan::kLanes + lane);
        sum = dot(dy_v[k], x_v[k], gamma[k], sum);
        accumulate(sums, row, k, k * Plan::kLanes + lane, r, dy_v[k], x_v[k]);
      }
      const float c = projection(row_sum(sum), r);
      sums.end_of_row();
      if constexpr (kResidual && !kDhEarly) fetch_dh();
      hide(dy_v, runtime_zero(c * c));
      hide(x_v, runtime_zero(c * c));
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        gamma[k] = row.load_parameter(weight, weight_shift, k * Plan::kLanes + lane);
        row.template store<kStores>(
            dx, k * Plan::kLanes + lane,
            gradient<kResidual>(dy_v[k], dh_v[k], x_v[k], gamma[k], r, c));
      }
    }
    sums.write(partials + static_cast<long long>(blockIdx.x) * columns, columns);
  }

  // Rows that do not fit, first kernel: the projection of each row.
  template <class Plan>
  __device__ void projections(float* projected) const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Values = Packed<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    for (long long n = blockIdx.x; n < rows; n += gridDim.x) {
      const Row<T, kWidth, Plan::kRagged> row(n * columns, columns, shift);
      const float r = ::load<Reuse::kSoon, 1>(rstd + n)[0];
      float sum = 0.0f;
      for (int base = threadIdx.x; base < row.vectors(); base += Plan::kThreads * Plan::kVectors) {
        Values dy_v, x_v, gamma;
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          dy_v[k] = row.template load<Reuse::kNever>(dy, v);
          x_v[k] = row.template load<Reuse::kNever>(x, v);
          gamma[k] = row.load_parameter(weight, weight_shift, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) sum = dot(dy_v[k], x_v[k], gamma[k], sum);
      }
      sum = row_sum(sum);
      if (threadIdx.x == 0) {
        ::store<Reuse::kSoon>(projected + n, Vector<float, 1>{{projection(sum, r)}});
      }
    }
  }

  // Second kernel: a block owns a tile of columns, keeps their sums in registers and walks down
  // its share of the rows. Blocks are tile-major: those that run together read whole rows.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_tiles(const float* projected) const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Packed<T, kWidth>[Plan::kVectors];
    // One vector less where a tile may begin inside one.
    constexpr int kTile = (Plan::kThreads * Plan::kVectors - Plan::kRagged) * kWidth;
    ColumnSums<Plan, kWidth> sums(dynamic_shared<float>());
    const int tiles = (columns + kTile - 1) / kTile;
    const int begin = blockIdx.x % tiles * kTile;
    const int length = columns - begin < kTile ? columns - begin : kTile;
    const int share = blockIdx.x / tiles;
    __syncthreads();  // the sums in shared memory are zero
    for (long long n = share; n < rows; n += gridDim.x / tiles) {
      const Span row(n * columns + begin, length, shift);
      const float r = ::load<Reuse::kSoon, 1>(rstd + n)[0];
      const float c = ::load<Reuse::kSoon, 1>(projected + n)[0];
      Values dy_v, dh_v, x_v, gamma;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kThreads + threadIdx.x;
        dy_v[k] = row.template load<Reuse::kNever>(dy, v);
        x_v[k] = row.template load<Reuse::kNever>(x, v);
        if constexpr (kResidual) dh_v[k] = row.template load<Reuse::kNever>(dh, v);
        gamma[k] = row.load_parameter(weight + begin, weight_shift, v);
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kThreads + threadIdx.x;
        accumulate(sums, row, k, v, r, dy_v[k], x_v[k]);
        row.template store<kStores>(
            dx, v, gradient<kResidual>(dy_v[k], dh_v[k], x_v[k], gamma[k], r, c));
      }
      sums.end_of_row();
      if constexpr (Plan::kRagged) __syncthreads();  // the next row is cut elsewhere
    }
    sums.write(partials + static_cast<long long>(share) * columns + begin, length);
  }
};
