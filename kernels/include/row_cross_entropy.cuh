// Cross-entropy of rows of logits x with one target class each, as a body of row_map.cuh.
//
//   lse  = max(x) + log(sum(exp(x - max(x))))
//   loss = (1 - e) (lse - x[target]) + e (lse - mean(x))          e: label smoothing, or 0
//   dx   = dloss (exp(x - lse) - (1 - e) [column = target] - e / columns)
//
// A row whose target is kIgnored has loss 0 and gradient 0, whatever it holds; one whose target is
// no class has loss NaN and gradient NaN, and nothing outside of the row is touched.
//
// The logit of the target is read by itself: DRAM sees it once, as the rest of the row.
//
// Logits are added relative to the largest, as exponentials are, and losses are
// largest - x[target] + log(sum): nothing cancels where logits are far from zero.
#pragma once

#include "pair.cuh"
#include "row_softmax.cuh"

constexpr long long kIgnored = -100;

// What every row function knows.
template <typename T, class Plan>
struct Logits : Placed {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  using Run = Row<T, kWidth, Plan::kRagged>;
  using Loaded = Packed<T, kWidth>;
  struct Span : Cut<T, kWidth, Plan::kRagged> {
    const T* x;  // of the row: found once for all of its vectors
  };
  using Kept = Loaded;
  long long rows;
  int columns;
  int shift;        // elements that matrices begin past a vector
  float per_class;  // 1 / columns
  float smoothing;
  const T* x;
  const long long* target;

  __device__ Run whole(long long n) const { return {n * columns, n < rows ? columns : 0, shift}; }
  __device__ Run none() const { return {0, 0, shift}; }
  // `run` of x, which the row's place is already in.
  template <Reuse kReuse>
  __device__ Loaded load_from(const T* row, Run run, int v, const Loaded& outside) const {
    run.start = 0;
    return run.template load<kReuse>(row, v, outside);
  }
  __device__ const Kept& keep(const Span&, int, const Loaded& loaded) const { return loaded; }

  __device__ long long target_of(long long n) const {
    return n < rows ? load<Reuse::kNever, 1>(target + n)[0] : kIgnored;
  }
  // -1 where the target is no class.
  __device__ int column_of(long long target) const {
    return 0 <= target && target < columns ? static_cast<int>(target) : -1;
  }
  // Place of the target in a vector, if it is between 0 and kWidth - 1.
  __device__ unsigned int place(const Run& row, int v, int target) const {
    return target < 0 ? ~0u : static_cast<unsigned int>(target - row.column(v));
  }
  // All but 1 / columns of the smoothing, which a target has besides.
  __device__ float share() const { return smoothing * per_class; }
};

inline __device__ float not_a_number() { return __int_as_float(0x7fc00000); }

// Losses, and with kGradient the gradients from the same read of x.
// kTwice: rows that are too long to wait are read again.
template <typename T, class Plan, bool kSmoothed, bool kGradient, Reuse kStores,
          bool kTwice = false>
struct CrossEntropy : Logits<T, Plan> {
  using Base = Logits<T, Plan>;
  using typename Base::Kept;
  using typename Base::Loaded;
  using typename Base::Span;
  static constexpr int kWidth = Base::kWidth;
  const float* dloss;
  float* loss;
  float* lse;
  T* dx;

  struct Early {
    long long target;
    float dloss;
  };
  // The largest so far, and `base`, the same or 0 while that is -inf; relative to it the sum of
  // exponentials (of every other element each) and of logits, and how many these are; the target's
  // logit.
  struct State {
    int target;
    float largest = Largest::identity();
    float base = 0.0f;
    Pair sum{};
    float total = 0.0f;
    float count = 0.0f;
    float hit = 0.0f;
  };
  struct Result {
    int target;
    unsigned int kept;  // bits of the gradient: none where the target is ignored
    unsigned int own;   // the target's gradient, in every element of a word
    float largest, factor, loss, lse, dloss;
    __device__ float positive() const { return dloss * dloss; }
  };

  __device__ CrossEntropy(const Base& base, const float* dloss, float* loss, float* lse, T* dx)
      : Base(base), dloss(dloss), loss(loss), lse(lse), dx(dx) {}

  __device__ Span cut(long long n) const {
    return {{this->whole(n), kGradient ? this->whole(n) : this->none()},
            this->x + n * this->columns};
  }
  __device__ Early early(long long n) const {
    float factor = 0.0f;
    if (kGradient && n < this->rows) factor = ::load<Reuse::kNever, 1>(dloss + n)[0];
    return {this->target_of(n), factor};
  }
  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    constexpr Reuse kOwn = kGradient ? kReuse : Reuse::kNever;
    return this->template load_from<kOwn>(cut.x, cut.read, v, Kept::filled(Largest::identity()));
  }
  // Of a row that waits, nothing but what lies outside of it.
  __device__ Kept again(const Span& cut, int v) const {
    if constexpr (kTwice) return load<Reuse::kSoon>(cut, v);
    return Kept::zeros();
  }
  __device__ State begin(const Early& early) const { return {this->column_of(early.target)}; }

  static __device__ float exponential(float x, float largest) {
    return exp2_fast((x - largest) * kLog2E);
  }

  // The target's logit, by the row's first thread behind the row's first vectors. To look for it in
  // every vector costs as much as an exponential; asked for before them, it would be waited for.
  __device__ void pick(State& state, const Span& cut, int first) const {
    if (first > 0 || state.target < 0) return;
    state.hit = to_float(::load<Reuse::kSoon, 1>(cut.x + state.target)[0]);
  }

  // Once in a while a larger logit is met: what is summed becomes relative to it.
  static __device__ void raise(State& state, float largest) {
    state.sum = state.sum * exponential(state.largest, largest);
    if constexpr (kSmoothed) state.total += state.count * (state.base - largest);
    state.largest = state.base = largest;
  }

  // Logits of vector v, relative to the base.
  __device__ void add_logits(State& state, const Span& cut, int v,
                             const Pair (&logits)[kWidth / 2]) const {
    if constexpr (Plan::kRagged) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (!cut.read.holds(v, i)) continue;
        state.total += i % 2 ? logits[i / 2].second : logits[i / 2].first;
        state.count += 1.0f;
      }
    } else {
      Pair sum = logits[0];
#pragma unroll
      for (int i = 1; i < kWidth / 2; ++i) sum = sum + logits[i];
      if (cut.read.whole(v)) {
        state.total += sum.first + sum.second;
        state.count += kWidth;
      }
    }
  }

  // The online form, as in row_softmax.cuh.
  template <int kVectors>
  __device__ void add(State& state, const Span& cut, int first, int stride,
                      const Kept (&values)[kVectors]) const {
    pick(state, cut, first);
    const float largest = largest_of(values);
    if (largest > state.largest) raise(state, largest);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      Pair logits[kWidth / 2];
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        logits[i] = pair_at(values[k], 2 * i) - state.base;
        state.sum = state.sum + exp2_fast(logits[i] * kLog2E);
      }
      if constexpr (kSmoothed) add_logits(state, cut, first + k * stride, logits);
    }
  }

  template <class Reduction>
  __device__ Result reduce(const State& state, const Early& early, Reduction& reduction) const {
    const float largest = reduction.template of<Largest>(state.largest);
    const float own = state.sum.first + state.sum.second;
    const float sum = own * exponential(state.largest, largest);
    float total = state.total;
    if constexpr (kSmoothed) total += state.count * (state.base - largest);
    return result(state, early, largest, sum, total, reduction);
  }

  // `sum` and `total` are relative to the row's largest.
  template <class Reduction>
  __device__ Result result(const State& state, const Early& early, float largest, float sum,
                           float total, Reduction& reduction) const {
    float sums[2] = {sum, state.hit};
    reduction.template all<Sum>(sums);
    const float log_sum = logf(sums[0]);
    float loss = largest - sums[1] + log_sum;
    if constexpr (kSmoothed) {
      const float mean = reduction.template of<Sum>(total) * this->per_class;
      loss = (1.0f - this->smoothing) * loss + this->smoothing * (log_sum - mean);
    }
    const bool ignored = early.target == kIgnored;
    if (state.target < 0) loss = ignored ? 0.0f : not_a_number();
    const float factor = state.target < 0 ? not_a_number() : reciprocal_fast(sums[0]);
    const float probability = exponential(sums[1], largest) * factor;
    const float own = early.dloss * (probability - this->share() - (1.0f - this->smoothing));
    const float both[2] = {own, own};
    return {state.target, ignored ? 0u : ~0u,    pack<T>(both),
            largest,      factor, loss, largest + log_sum, early.dloss};
  }

  __device__ void write_vector(const Span& cut, int v, const Pair (&exponentials)[kWidth / 2],
                               const Result& result) const {
    Pair out[kWidth / 2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      if constexpr (kSmoothed) {
        out[i] = exponentials[i].times_plus(result.factor, -this->share()) * result.dloss;
      } else {
        out[i] = exponentials[i] * (result.factor * result.dloss);
      }
    }
    Kept gradient = rounded<T, kWidth>(out);
    const unsigned int place = this->place(cut.written, v, result.target);
    if (place < kWidth) put(gradient, place, result.own);
#pragma unroll
    for (int i = 0; i < Kept::kWords; ++i) gradient.words[i] &= result.kept;
    cut.written.template store<kStores>(dx, v, gradient);
  }

  // One element of a vector, by masks: registers cannot be indexed at run time.
  static __device__ void put(Kept& vector, unsigned int place, unsigned int own) {
    const unsigned int element = sizeof(T) == 4 ? ~0u : 0xffffu << place % 2 * 16;
#pragma unroll
    for (unsigned int i = 0; i < Kept::kWords; ++i) {
      const unsigned int mask = place / Kept::kPerWord == i ? element : 0u;
      vector.words[i] = (vector.words[i] & ~mask) | (own & mask);
    }
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    if constexpr (kGradient) {
      Pair exponentials[kWidth / 2];
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
        exponentials[i] = exp2_fast((pair_at(values, 2 * i) - result.largest) * kLog2E);
      }
      write_vector(cut, v, exponentials, result);
    }
  }

  __device__ void finish(long long n, const Result& result) const {
    ::store<Reuse::kSoon>(loss + n, Vector<float, 1>{{result.loss}});
    if constexpr (!kGradient) ::store<Reuse::kSoon>(lse + n, Vector<float, 1>{{result.lse}});
  }

  // With the gradient, every exponential is computed once and waits as float32, as in softmax.
  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      const Early& early, Reduction& reduction) const {
    if constexpr (!kGradient) {
      reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
    } else {
      State state = begin(early);
      pick(state, cut, lane);
      const float largest = reduction.template of<Largest>(largest_of(values));
      Pair exponentials[P::kVectors][kWidth / 2];
#pragma unroll
      for (int k = 0; k < P::kVectors; ++k) {
        Pair logits[kWidth / 2];
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) {
          logits[i] = pair_at(values[k], 2 * i) - largest;
          exponentials[k][i] = exp2_fast(logits[i] * kLog2E);
          state.sum = state.sum + exponentials[k][i];
        }
        if constexpr (kSmoothed) add_logits(state, cut, k * P::kLanes + lane, logits);
      }
      const Result result =
          this->result(state, early, largest, state.sum.first + state.sum.second, state.total,
                       reduction);
#pragma unroll
      for (int k = 0; k < P::kVectors; ++k) {
        write_vector(cut, k * P::kLanes + lane, exponentials[k], result);
      }
      if (lane == 0 && n < this->rows) finish(n, result);
    }
  }
};

// Gradients from the lse that forward left: nothing to reduce, one pass whatever the length.
template <typename T, class Plan, Reuse kStores>
struct CrossEntropyBackward : Logits<T, Plan> {
  using Base = Logits<T, Plan>;
  using typename Base::Kept;
  using typename Base::Loaded;
  using typename Base::Span;
  static constexpr int kWidth = Base::kWidth;
  const float* dloss;
  const float* lse;
  T* dx;

  struct Result {
    long long target;
    float dloss, lse;
    __device__ float positive() const { return dloss * dloss; }
  };
  using Early = Result;
  struct State {};

  __device__ CrossEntropyBackward(const Base& base, const float* dloss, const float* lse, T* dx)
      : Base(base), dloss(dloss), lse(lse), dx(dx) {}

  // There is nothing to read before the row is written.
  __device__ Span cut(long long n) const {
    return {{this->none(), this->whole(n)}, this->x + n * this->columns};
  }
  __device__ Early early(long long n) const {
    if (n >= this->rows) return {kIgnored, 0.0f, 0.0f};
    return {this->target_of(n), ::load<Reuse::kNever, 1>(dloss + n)[0],
            ::load<Reuse::kNever, 1>(lse + n)[0]};
  }
  template <Reuse kReuse>
  __device__ Loaded load(const Span& cut, int v) const {
    return this->template load_from<Reuse::kNever>(cut.x, cut.written, v, Kept::zeros());
  }
  __device__ Kept again(const Span& cut, int v) const { return load<Reuse::kNever>(cut, v); }
  __device__ State begin(const Early&) const { return {}; }
  template <int kVectors>
  __device__ void add(State&, const Span&, int, int, const Kept (&)[kVectors]) const {}
  template <class Reduction>
  __device__ Result reduce(const State&, const Early& early, Reduction&) const {
    return early;
  }

  __device__ void write(const Span& cut, int v, const Kept& values, const Result& result) const {
    const int target = this->column_of(result.target);
    const unsigned int place = this->place(cut.written, v, target);
    const float dloss = target < 0 ? not_a_number() : result.dloss;
    Pair out[kWidth / 2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      out[i] = exp2_fast((pair_at(values, 2 * i) - result.lse) * kLog2E) - this->share();
    }
    if (place < kWidth) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (place == i) (i % 2 ? out[i / 2].second : out[i / 2].first) -= 1.0f - this->smoothing;
      }
    }
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) out[i] = out[i] * dloss;
    Kept gradient = rounded<T, kWidth>(out);
    const unsigned int kept = result.target == kIgnored ? 0u : ~0u;
#pragma unroll
    for (int i = 0; i < Kept::kWords; ++i) gradient.words[i] &= kept;
    cut.written.template store<kStores>(dx, v, gradient);
  }
  __device__ void finish(long long, const Result&) const {}

  template <class P, class Reduction>
  __device__ void row(long long n, const Span& cut, int lane, Kept (&values)[P::kVectors],
                      const Early& early, Reduction& reduction) const {
    reduce_and_write<P>(*this, n, cut, lane, values, early, reduction);
  }
};
