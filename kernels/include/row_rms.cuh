// RMSNorm of rows, forward and backward, alone or with a residual add in front of it.
//
//   forward    h = x + residual, or x      y = h * rstd * weight      rstd = 1/sqrt(mean(h^2) + eps)
//   backward   dx = (dy * weight - h * dot) * rstd (+ dh)     dot = rstd^2 * mean(dy * weight * h)
//              dweight = sum over rows of dy * h * rstd
//
// Pointers to the residual, to h in forward and to dh are null where kResidual is false.
#pragma once

#include "column.cuh"
#include "math.cuh"
#include "row.cuh"

template <typename T>
struct RmsForward {
  const T* x;
  const T* residual;
  const T* weight;
  T* h;
  T* y;
  float* rstd;
  long long rows;
  int columns;
  float eps;

  // h of one vector as it is stored, that is rounded: the norm is of what the next layer reads.
  template <int kWidth>
  static __device__ Vector<T, kWidth> add(const Vector<T, kWidth>& a, const Vector<T, kWidth>& b) {
    Vector<T, kWidth> sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
    return sum;
  }

  // In float32 before squaring: 300^2 is infinite in float16.
  template <int kWidth>
  static __device__ float squares(const Vector<T, kWidth>& h, float sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += to_float(h[i]) * to_float(h[i]);
    return sum;
  }

  __device__ float reciprocal_deviation(float sum) const {
    return rsqrt_fast(sum / static_cast<float>(columns) + eps);
  }

  template <int kWidth>
  static __device__ Vector<T, kWidth> scaled(const Vector<T, kWidth>& h,
                                             const Vector<T, kWidth>& weight, float rstd) {
    Vector<T, kWidth> y;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      y[i] = from_float<T>(to_float(h[i]) * rstd * to_float(weight[i]));
    }
    return y;
  }

  // Rows that fit in registers. The next row is asked for before this one is reduced, so that a
  // block always has loads on their way; the weight stays in registers for all rows of the block,
  // unless rows are cut at changing columns.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_registers() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Vector<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);

    const int lane = threadIdx.x % Plan::kLanes;
    const int group = threadIdx.x / Plan::kLanes;
    const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
    const auto span = [&](long long row) {
      return Span(row * columns, row < rows ? columns : 0);
    };
    Values next, added, gamma;
    const auto fetch = [&](const Span& row) {
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        next[k] = row.template load<Reuse::kNever>(x, v);
        if constexpr (kResidual) added[k] = row.template load<Reuse::kNever>(residual, v);
      }
    };

    long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups;
    fetch(span(first + group));
    if constexpr (!Plan::kRagged) {
      const Span any(0, columns);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        gamma[k] = any.load_parameter(weight, k * Plan::kLanes + lane);
      }
    }
    // Counted by the block's first row, so that a warp stays whole for its shuffles.
    for (; first < rows; first += step) {
      const Span row = span(first + group);
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
      fetch(span(first + group + step));
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        if constexpr (Plan::kRagged) {
          gamma[k] = row.load_parameter(weight, k * Plan::kLanes + lane);
        }
        sum = squares(values[k], sum);
      }
      const float r = reciprocal_deviation(row_sum(sum));
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        row.template store<kStores>(y, k * Plan::kLanes + lane, scaled(values[k], gamma[k], r));
      }
      if (lane == 0 && row.columns) ::store<kStores>(rstd + first + group, Vector<float, 1>{{r}});
    }
  }

  // Longer rows: kVectors at a time. The row waits in shared memory for its statistic; one that
  // does not fit there is read again (kStaged false), from the cache if that is large enough.
  // A thread reads back what it wrote itself, so no barrier stands between.
  template <class Plan, bool kResidual, bool kStaged, Reuse kStores>
  __device__ void in_steps() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Values = Vector<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    Vector<T, kWidth>* const staged = dynamic_shared<Vector<T, kWidth>>();
    constexpr int kStep = Plan::kThreads * Plan::kVectors;

    for (long long r = blockIdx.x; r < rows; r += gridDim.x) {
      const Row<T, kWidth, Plan::kRagged> row(r * columns, columns);
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
      for (int base = threadIdx.x; base < row.vectors(); base += kStep) {
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
          gamma[k] = row.load_parameter(weight, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          row.template store<kStores>(y, base + k * Plan::kThreads,
                                      scaled(values[k], gamma[k], deviation));
        }
      }
      if (threadIdx.x == 0) ::store<kStores>(rstd + r, Vector<float, 1>{{deviation}});
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

  template <int kWidth>
  static __device__ float dot(const Vector<T, kWidth>& dy, const Vector<T, kWidth>& x,
                              const Vector<T, kWidth>& weight, float sum) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += to_float(dy[i]) * to_float(weight[i]) * to_float(x[i]);
    return sum;
  }

  // rstd^2 * mean(dy * weight * x), which is the same for a whole row.
  __device__ float projection(float sum, float r) const {
    return sum / static_cast<float>(columns) * r * r;
  }

  // dx of one vector, and what it adds to dweight.
  template <bool kResidual, Reuse kStores, class Span, int kWidth, class Sums>
  __device__ void finish(const Span& row, int k, int v, const Vector<T, kWidth>& dy_v,
                         const Vector<T, kWidth>& dh_v, const Vector<T, kWidth>& x_v,
                         const Vector<T, kWidth>& weight_v, float r, float c, Sums& sums) const {
    Vector<T, kWidth> out;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = to_float(dy_v[i]);
      const float value = to_float(x_v[i]);
      float d = (g * to_float(weight_v[i]) - value * c) * r;
      if constexpr (kResidual) d += to_float(dh_v[i]);
      out[i] = from_float<T>(d);
      sums.add(k, i, row.column(v) + i, columns, g * value * r);
    }
    row.template store<kStores>(dx, v, out);
  }

  // Rows that fit in registers: one pass, and one reduction whose barrier also separates the rows
  // for the column sums. rstd is loaded by one thread and travels with the reduction.
  template <class Plan, bool kResidual, Reuse kStores>
  __device__ void in_registers() const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Span = Row<T, kWidth, Plan::kRagged>;
    using Values = Vector<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    ColumnSums<Plan, kWidth> sums(dynamic_shared<float>());

    const int lane = threadIdx.x % Plan::kLanes;
    const int group = threadIdx.x / Plan::kLanes;
    const long long step = static_cast<long long>(gridDim.x) * Plan::kGroups;
    const auto span = [&](long long row) {
      return Span(row * columns, row < rows ? columns : 0);
    };
    Values dy_v, dh_v, x_v, next_dy, next_dh, next_x, gamma;
    float next_r = 0.0f;
    const auto fetch = [&](long long r) {
      const Span row = span(r);
      next_r = lane == 0 && row.columns ? ::load<Reuse::kNever, 1>(rstd + r)[0] : 0.0f;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kLanes + lane;
        next_dy[k] = row.template load<Reuse::kNever>(dy, v);
        next_x[k] = row.template load<Reuse::kNever>(x, v);
        if constexpr (kResidual) next_dh[k] = row.template load<Reuse::kNever>(dh, v);
      }
    };

    constexpr bool kAhead = Plan::kVectors * Plan::kBytes <= 32;  // registers for a second row
    long long first = static_cast<long long>(blockIdx.x) * Plan::kGroups;
    if (kAhead) fetch(first + group);
    if constexpr (!Plan::kRagged) {
      const Span any(0, columns);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        gamma[k] = any.load_parameter(weight, k * Plan::kLanes + lane);
      }
    }
    for (; first < rows; first += step) {
      const Span row = span(first + group);
      if (!kAhead) fetch(first + group);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        dy_v[k] = next_dy[k];
        x_v[k] = next_x[k];
        if constexpr (kResidual) dh_v[k] = next_dh[k];
      }
      float r = next_r;
      if (kAhead) fetch(first + group + step);
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        if constexpr (Plan::kRagged) {
          gamma[k] = row.load_parameter(weight, k * Plan::kLanes + lane);
        }
        sum = dot(dy_v[k], x_v[k], gamma[k], sum);
      }
      sum = row_sum(sum, r);
      const float c = projection(sum, r);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        finish<kResidual, kStores>(row, k, k * Plan::kLanes + lane, dy_v[k], dh_v[k], x_v[k],
                                   gamma[k], r, c, sums);
      }
      sums.end_of_row();
    }
    sums.write(partials + static_cast<long long>(blockIdx.x) * columns, columns);
  }

  // Rows that do not fit, first kernel: the projection of each row.
  template <class Plan>
  __device__ void projections(float* projected) const {
    constexpr int kWidth = elements_in<T, Plan::kBytes>();
    using Values = Vector<T, kWidth>[Plan::kVectors];
    SHARED_ARRAY(float, slots, RowSum<Plan::kLanes>::kFloats);
    RowSum<Plan::kLanes> row_sum(slots);
    for (long long n = blockIdx.x; n < rows; n += gridDim.x) {
      const Row<T, kWidth, Plan::kRagged> row(n * columns, columns);
      float r = threadIdx.x == 0 ? ::load<Reuse::kSoon, 1>(rstd + n)[0] : 0.0f;
      float sum = 0.0f;
      for (int base = threadIdx.x; base < row.vectors(); base += Plan::kThreads * Plan::kVectors) {
        Values dy_v, x_v, gamma;
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) {
          const int v = base + k * Plan::kThreads;
          dy_v[k] = row.template load<Reuse::kNever>(dy, v);
          x_v[k] = row.template load<Reuse::kNever>(x, v);
          gamma[k] = row.load_parameter(weight, v);
        }
#pragma unroll
        for (int k = 0; k < Plan::kVectors; ++k) sum = dot(dy_v[k], x_v[k], gamma[k], sum);
      }
      sum = row_sum(sum, r);
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
    using Values = Vector<T, kWidth>[Plan::kVectors];
    // One vector less where a tile may begin inside one.
    constexpr int kTile = (Plan::kThreads * Plan::kVectors - Plan::kRagged) * kWidth;
    ColumnSums<Plan, kWidth> sums(dynamic_shared<float>());
    const int tiles = (columns + kTile - 1) / kTile;
    const int begin = blockIdx.x % tiles * kTile;
    const int length = columns - begin < kTile ? columns - begin : kTile;
    const int share = blockIdx.x / tiles;
    __syncthreads();  // the sums in shared memory are zero
    for (long long n = share; n < rows; n += gridDim.x / tiles) {
      const Span row(n * columns + begin, length);
      const float r = ::load<Reuse::kSoon, 1>(rstd + n)[0];
      const float c = ::load<Reuse::kSoon, 1>(projected + n)[0];
      Values dy_v, dh_v, x_v, gamma;
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = k * Plan::kThreads + threadIdx.x;
        dy_v[k] = row.template load<Reuse::kNever>(dy, v);
        x_v[k] = row.template load<Reuse::kNever>(x, v);
        if constexpr (kResidual) dh_v[k] = row.template load<Reuse::kNever>(dh, v);
        gamma[k] = row.load_parameter(weight + begin, v);
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        finish<kResidual, kStores>(row, k, k * Plan::kThreads + threadIdx.x, dy_v[k], dh_v[k],
                                   x_v[k], gamma[k], r, c, sums);
      }
      sums.end_of_row();
      if constexpr (Plan::kRagged) __syncthreads();  // the next row is cut elsewhere
    }
    sums.write(partials + static_cast<long long>(share) * columns + begin, length);
  }
};
