// Softmax of rows: plain, its logarithm, of scale * x where a mask is set, and of the columns up to
// the row's own.
//
//   forward    p = exp(scale * (x - max))     y = p / sum(p), or (x - max) - log(sum(p))
//   backward   dx = scale * (dy - sum(y * dy)) * y, or dy - sum(dy) * exp(y)
//
// What a row does not have (the end of its last vector, masked columns) is -inf on the way in. A row
// that is -inf throughout is NaN, as -inf - (-inf) is. The maximum may overlook a NaN: the sum does
// not.
#pragma once

#include "math.cuh"
#include "row_map.cuh"

enum class Form { kPlain, kLog, kMasked, kCausal };

struct Largest {
  static __device__ float identity() { return __int_as_float(0xff800000); }  // -inf
  static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};

// Row n of a stack of square matrices has the columns up to n modulo their size. `reciprocal` is
// 2^64 / columns, rounded up; 0 for one column.
__device__ inline int columns_up_to_own(long long n, int columns, unsigned long long reciprocal) {
  const long long matrix = static_cast<long long>(__umul64hi(n, reciprocal));
  const long long own = n - matrix * columns + 1;
  return own < columns ? static_cast<int>(own) : columns;
}

template <typename T, int kWidth, bool kRagged, Form kForm>
struct SoftmaxRows {
  static constexpr bool kCausal = kForm == Form::kCausal;
  using Span = Cut<T, kWidth, kRagged, kRagged || kCausal>;
  long long rows;
  int columns;
  int shift;  // elements that matrices begin past a vector
  unsigned long long reciprocal;

  __device__ Span cut(long long n) const {
    const int written = n < rows ? columns : 0;
    int read = written;
    if constexpr (kCausal) read = n < rows ? columns_up_to_own(n, columns, reciprocal) : 0;
    return {{n * columns, read, shift}, {n * columns, written, shift}};
  }
  __device__ Nothing early(long long) const { return {}; }
};

// x as it is loaded, and the mask beside it.
template <typename T, int kWidth, bool kMasked>
struct Scores {
  Packed<T, kWidth> x;
  Packed<unsigned char, kWidth> mask;
};
template <typename T, int kWidth>
struct Scores<T, kWidth, false> {
  Packed<T, kWidth> x;
};

template <typename T, class Plan, Form kForm, Reuse kStores>
struct SoftmaxForward
    : SoftmaxRows<T, elements_in<T, Plan::kBytes>(), Plan::kRagged, kForm> {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  static constexpr bool kMasked = kForm == Form::kMasked;
  static constexpr bool kLog = kForm == Form::kLog;
  using Rows = SoftmaxRows<T, kWidth, Plan::kRagged, kForm>;
  using Span = typename Rows::Span;
  using Loaded = Scores<T, kWidth, kMasked>;
  using Kept = Packed<T, kWidth>;
  const T* x;
  const unsigned char* mask;
  T* y;
  float scale_log2e;

  // The maximum so far and the sum of exponentials relative to it.
  struct State {
    float largest = Largest::identity();
    float sum = 0.0f;
  };
  struct Result {
    float largest;
    float factor;  // of the exponential; of the log, what is subtracted
  };

  __device__ SoftmaxForward(const T* x, const unsigned char* mask, T* y, const Rows& rows,
                            float scale)
      : Rows(rows), x(x), mask(mask), y(y), scale_log2e(scale * kLog2E) {}

  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    Loaded loaded;
    loaded.x = cut.read.template load<kReuse>(x, v, Kept::filled(Largest::identity()));
    if constexpr (kMasked) {
      const Row<unsigned char, kWidth, Plan::kRagged> bytes(cut.read.start, cut.read.columns,
                                                            this->shift);
      loaded.mask = bytes.template load<kReuse>(mask, v);
    }
    return loaded;
  }

  __device__ Kept keep(const Loaded& loaded) const {
    if constexpr (!kMasked) return loaded.x;
    else {
      float kept[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const bool attends = loaded.mask.words[i / 4] >> i % 4 * 8 & 0xffu;
        kept[i] = attends ? loaded.x[i] : Largest::identity();
      }
      return Kept::rounded(kept);
    }
  }

  __device__ float exponential(float x, float largest) const {
    return exp2_fast((x - largest) * scale_log2e);
  }

  // The online form: what is summed before a larger maximum appears is scaled down to it. While
  // all is -inf, exponentials are relative to 0, and 0.
  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
    float largest = state.largest;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, values[k][i]);
    }
    const float base = largest == Largest::identity() ? 0.0f : largest;
    state.sum *= exponential(state.largest, base);
    state.largest = largest;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) state.sum += exponential(values[k][i], base);
    }
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    const float largest = reduction.template of<Largest>(state.largest);
    return result(largest,
                  reduction.template of<Sum>(state.sum * exponential(state.largest, largest)));
  }

  __device__ Result result(float largest, float sum) const {
    return {largest, kLog ? logf(sum) : reciprocal_fast(sum)};
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (kLog) out[i] = (values[i] - result.largest) - result.factor;
      else out[i] = exponential(values[i], result.largest) * result.factor;
    }
    cut.written.template store<kStores>(y, v, Kept::rounded(out));
  }
  __device__ void finish(long long, const Result&) const {}

  // In registers the maximum is known before the first exponential, and each is computed once:
  // two per element are more than an H100 or a B200 can do at the speed of its memory.
  template <class P, class Reduction>
  __device__ void row(long long, const Span& cut, int lane, const Kept (&values)[P::kVectors],
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
      for (int i = 0; i < kWidth; ++i) {
        const float p = exponential(values[k][i], largest);
        out[k][i] = kLog ? values[k][i] - largest : p;
        sum += p;
      }
    }
    const float factor = result(largest, reduction.template of<Sum>(sum)).factor;
#pragma unroll
    for (int k = 0; k < P::kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[k][i] = kLog ? out[k][i] - factor : out[k][i] * factor;
      cut.written.template store<kStores>(y, k * P::kLanes + lane, Kept::rounded(out[k]));
    }
  }
};

template <typename T, class Plan, Form kForm, Reuse kStores>
struct SoftmaxBackward
    : SoftmaxRows<T, elements_in<T, Plan::kBytes>(), Plan::kRagged, kForm> {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  static constexpr bool kLog = kForm == Form::kLog;
  using Rows = SoftmaxRows<T, kWidth, Plan::kRagged, kForm>;
  using Span = typename Rows::Span;
  using Loaded = Two<T, kWidth>;  // dy and y
  using Kept = Loaded;
  const T* dy;
  const T* y;
  T* dx;
  float scale;

  struct State {
    float sum = 0.0f;
  };
  struct Result {
    float sum;
    __device__ float positive() const { return sum * sum; }
  };

  __device__ SoftmaxBackward(const T* dy, const T* y, T* dx, const Rows& rows, float scale)
      : Rows(rows), dy(dy), y(y), dx(dx), scale(scale) {}

  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return {cut.read.template load<kReuse>(dy, v), cut.read.template load<kReuse>(y, v)};
  }
  __device__ const Kept& keep(const Loaded& loaded) const { return loaded; }

  template <int kVectors>
  __device__ void add(State& state, const Span&, int, int, const Kept (&values)[kVectors]) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        state.sum += kLog ? values[k].a[i] : values[k].a[i] * values[k].b[i];
      }
    }
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, Nothing, Reduction& reduction) const {
    return {reduction.template of<Sum>(state.sum)};
  }

  // Columns that were not read are 0 whatever the sum is.
  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float dy = values.a[i], y = values.b[i];
      out[i] = kLog ? dy - exp_fast(y) * result.sum : (dy - result.sum) * y * scale;
      if (Rows::kCausal && !cut.read.has(cut.read.column(v) + i)) out[i] = 0.0f;
    }
    cut.written.template store<kStores>(dx, v, Packed<T, kWidth>::rounded(out));
  }
  __device__ void finish(long long, const Result&) const {}

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      Nothing early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};
