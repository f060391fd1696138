// RMSNorm of rows that a cluster keeps: the forward of row_rms.cuh as a body of row_map.cuh.
#pragma once

#include "row_map.cuh"
#include "row_rms.cuh"

template <typename T, class Plan, bool kResidual, Reuse kStores>
struct RmsRows : Placed {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Norm = RmsForward<T>;
  using Span = Cut<T, kWidth, Plan::kRagged>;
  using Kept = Packed<T, kWidth>;
  struct Loaded {
    Kept x, residual;
  };
  struct State {
    float squares;
  };
  struct Result {
    float rstd;
  };
  Norm norm;
  long long rows;

  __device__ explicit RmsRows(const Norm& norm) : norm(norm), rows(norm.rows) {}

  __device__ Span cut(long long n) const {
    return whole_row<T, kWidth, Plan::kRagged>(n, rows, norm.columns, norm.shift);
  }
  __device__ Nothing early(long long) const { return {}; }
  __device__ State begin(Nothing) const { return {0.0f}; }

  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    Loaded loaded;
    loaded.x = cut.read.template load<kReuse>(norm.x, v);
    if constexpr (kResidual) loaded.residual = cut.read.template load<kReuse>(norm.residual, v);
    return loaded;
  }
  __device__ Kept keep(const Span& cut, int v, const Loaded& loaded) const {
    if constexpr (!kResidual) return loaded.x;
    const Kept h = Norm::add(loaded.x, loaded.residual);
    cut.written.template store<kStores>(norm.h, v, h);
    return h;
  }
  __device__ Kept again(const Span&, int) const { return Kept::zeros(); }  // a row is kept whole

  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) state.squares = Norm::squares(values[k], state.squares);
  }
  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    return {norm.reciprocal_deviation(reduction.template of<Sum>(state.squares))};
  }
  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    const auto gamma = cut.read.load_parameter(norm.weight, norm.weight_shift, v);
    norm.y.template write<kStores>(cut.written, v, Norm::scaled(values, gamma, result.rstd));
  }
  __device__ void finish(long long n, const Result& result) const {
    store<kStores>(norm.rstd + n, Vector<float, 1>{{result.rstd}});
  }
};

// Long rows: by steps of a block, or by a cluster where the plan has one.
template <class Plan, bool kResidual, bool kStaged, Reuse kStores, typename T>
__device__ void rms_of_long_rows(const RmsForward<T>& norm) {
  if constexpr (Plan::kCluster > 1) {
    rows_in_cluster<Plan>(RmsRows<T, Plan, kResidual, kStores>(norm));
  } else {
    norm.template in_steps<Plan, kResidual, kStaged, kStores>();
  }
}
