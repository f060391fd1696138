// Softmax and dropout in one pass. The walk over rows is in include/row_map.cuh, softmax in
// include/row_softmax.cuh, the generator in include/random.cuh.
//
// Forward
// 1. Two kernels: the softmax is written and read again: 4 streams where 2 must move.
// 2. One kernel: what is dropped is drawn where y is formed.
//
// Backward
// 1. Two kernels: dropout's gradient is written and read again, and forward's softmax is kept.
// 2. One kernel. The softmax is made again from x and the logarithm of its sum. What dy has to do
//    with dropped elements is settled as dy arrives, so that a draw is made once: dy or 0 is exact in
//    its own type, and waits packed.
#include "random.cuh"
#include "row_softmax.cuh"

template <typename T, class Plan, Reuse kStores>
struct SoftmaxDropoutForward : SoftmaxForward<T, Plan, Form::kPlain, kStores> {
  using Softmax = SoftmaxForward<T, Plan, Form::kPlain, kStores>;
  using typename Softmax::Kept;
  using typename Softmax::Rows;
  using typename Softmax::Span;
  using typename Softmax::State;
  static constexpr int kWidth = Softmax::kWidth;
  Dropout dropout;
  float* lse;

  struct Result {
    float largest, factor, lse;
  };

  __device__ SoftmaxDropoutForward(const T* x, const long long* state, T* y, float* lse,
                                   const Rows& rows)
      : Softmax(x, nullptr, y, rows, 1.0f), dropout(state), lse(lse) {}

  __device__ Result result(float largest, float sum) const {
    return {largest, reciprocal_fast(sum), largest + logf(sum)};
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    const float largest = reduction.template of<Largest>(state.largest);
    const float relative = state.sum * this->exponential(state.largest, largest);
    return result(largest, reduction.template of<Sum>(relative));
  }

  // A softmax that is NaN is NaN where it is dropped, too.
  __device__ void store(const Span& cut, int v, float (&softmax)[kWidth]) const {
    const unsigned int kept =
        dropout.kept<kWidth, !Plan::kRagged>(cut.written.start + cut.written.column(v));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) softmax[i] *= kept >> i & 1u ? Dropout::kScale : 0.0f;
    cut.written.template store<kStores>(this->y, v, Kept::rounded(softmax));
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float softmax[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      softmax[i] = this->exponential(values[i], result.largest) * result.factor;
    }
    store(cut, v, softmax);
  }

  __device__ void finish(long long n, const Result& result) const {
    ::store<kStores>(lse + n, Vector<float, 1>{{result.lse}});
  }

  // Each exponential once, as in softmax.
  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, const Kept (&values)[P::kVectors],
                      Nothing, Reduction& reduction) const {
    float largest = Largest::identity();
#pragma unroll
    for (int k = 0; k < P::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, values[k][i]);
    }
    largest = reduction.template of<Largest>(largest);
    float out[P::kVectors][kWidth];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < P::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += out[k][i] = this->exponential(values[k][i], largest);
    }
    const Result it = result(largest, reduction.template of<Sum>(sum));
#pragma unroll
    for (int k = 0; k < P::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[k][i] *= it.factor;
      store(cut, k * P::kLanes + lane, out[k]);
    }
    if (lane == 0 && n < this->rows) finish(n, it);
  }
};

template <typename T, class Plan, Reuse kStores>
struct SoftmaxDropoutBackward
    : SoftmaxRows<T, elements_in<T, Plan::kBytes>(), Plan::kRagged, Form::kPlain>, Placed {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Rows = SoftmaxRows<T, kWidth, Plan::kRagged, Form::kPlain>;
  using Span = typename Rows::Span;
  using Values = Packed<T, kWidth>;
  using Loaded = Two<T, kWidth>;  // dy, 0 where it is dropped, and x
  using Kept = Loaded;
  const T* dy;
  const T* x;
  const float* lse;
  T* dx;
  Dropout dropout;

  struct State {
    float lse;
    float sum = 0.0f;
  };
  struct Result {
    float lse, sum;
    __device__ float positive() const { return sum * sum; }
  };

  __device__ SoftmaxDropoutBackward(const T* dy, const T* x, const float* lse,
                                    const long long* state, T* dx, const Rows& rows)
      : Rows(rows), dy(dy), x(x), lse(lse), dx(dx), dropout(state) {}

  __device__ float early(long long n) const {
    return n < this->rows ? ::load<Reuse::kSoon, 1>(lse + n)[0] : 0.0f;
  }
  __device__ State begin(float row_lse) const { return {row_lse}; }

  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return {cut.read.template load<kReuse>(dy, v),
            cut.read.template load<kReuse>(x, v, Values::filled(Largest::identity()))};
  }

  __device__ Kept keep(const Span& cut, int v, const Loaded& loaded) const {
    const unsigned int kept =
        dropout.kept<kWidth, !Plan::kRagged>(cut.read.start + cut.read.column(v));
    float masked[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) masked[i] = loaded.a[i] * (kept >> i & 1u ? 1.0f : 0.0f);
    return {Values::rounded(masked), loaded.b};
  }
  __device__ Kept again(const Span& cut, int v) const {
    return keep(cut, v, load<Reuse::kSoon>(cut, v));
  }

  static __device__ float softmax(float x, float lse) { return exp_fast(x - lse); }

  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        state.sum += softmax(values[k].b[i], state.lse) * values[k].a[i];
      }
    }
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, float, Reduction& reduction) const {
    return {state.lse, reduction.template of<Sum>(state.sum)};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float weight = softmax(values.b[i], result.lse);
      out[i] = (values.a[i] - result.sum) * weight * Dropout::kScale;
    }
    cut.written.template store<kStores>(dx, v, Values::rounded(out));
  }
  __device__ void finish(long long, const Result&) const {}

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      float row_lse, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, row_lse, reduction);
  }
};

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_dropout_forward(const T* x, const long long* state, T* y, float* lse, long long rows,
                            int columns, int shift) {
  const SoftmaxDropoutForward<T, Plan, kStores> body(x, state, y, lse, {rows, columns, shift, 0});
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_dropout_forward_steps(const T* x, const long long* state, T* y, float* lse,
                                  long long rows, int columns, int shift) {
  const SoftmaxDropoutForward<T, Plan, kStores> body(x, state, y, lse, {rows, columns, shift, 0});
  rows_in_steps<Plan, kStaged>(body);
}

template <typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_dropout_backward(const T* dy, const T* x, const float* lse, const long long* state,
                             T* dx, long long rows, int columns, int shift) {
  const SoftmaxDropoutBackward<T, Plan, kStores> body(dy, x, lse, state, dx,
                                                      {rows, columns, shift, 0});
  rows_in_registers<Plan>(body);
}

template <typename T, class Plan, Reuse kStores, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    softmax_dropout_backward_steps(const T* dy, const T* x, const float* lse,
                                   const long long* state, T* dx, long long rows, int columns,
                                   int shift) {
  const SoftmaxDropoutBackward<T, Plan, kStores> body(dy, x, lse, state, dx,
                                                      {rows, columns, shift, 0});
  rows_in_steps<Plan, kStaged>(body);
}
