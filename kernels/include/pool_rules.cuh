// What a pooling does with a window, forward, and what a window gives back, backward. The schedules
// (strips in pool.cuh, tiles in pool_tile.cuh, channels last in pool_nhwc.cuh) know no arithmetic.
//
// Forward, a rule over T:
//   of(plane)                   the rule on this plane
//   taken(x)                    an element, or a vector of them, as it is compared or added; x itself
//                               where kTakesAsIs
//   kWindows; Value             neighbouring windows of one State, and an element of each of them
//   pick<kStride>(row, before, column), last(row), alone(element), lane(vector, i)   Values: see
//                               OneWindow
//   State; start, take, merge   of the elements of one row, then of rows: `place` counts them; in
//                               start, it is that of the first window, and others begin at 0
//   move(state, place)          a row that is the first, at this place
//   empty(place)                windows in which nothing was taken yet
//   store(p, states, scale)     results from element p on; scale is 1 / the elements of a window
// Backward, a gradient over T:
//   Loaded, load(p), none()     what memory holds of N windows, packed until it is used
//   Window; window(loaded, i)   of one of them; nothing() is a window that gives nothing
//   below(window)               the one that the next lane has
//   add(sum, window, place, weight)   to the gradient of the element at `place` of a window of
//                               1 / weight elements
//   Staged; taken(length)       the same windows, in shared memory, of which they take so many bytes
//   kInput                      dx is the sum times x, an operand of dx's shape
//   kSums                       `counted(window)` is summed as well: write(plane, band, bands, sum)
#pragma once

#include "math.cuh"
#include "reduce.cuh"
#include "row_packed.cuh"

// PyTorch's rule: a later element must be larger to win, and NaN always wins.
__device__ inline void take_larger(float& best, int& place, float value, int at) {
  if (value > best || value != value) {
    best = value;
    place = at;
  }
}

template <typename T, int N>
__device__ Vector<T, N> filled(float value) {
  Vector<T, N> vector;
  if constexpr (sizeof(vector) >= 4) {
    vector = Packed<T, N>::filled(value).vector();
  } else {
    vector[0] = from_float<T>(value);
  }
  return vector;
}

__device__ inline int unpack(unsigned int word, int i, unsigned char) {
  return static_cast<int>(word >> 8 * i & 0xffu);
}

// A vector that lives across a loop: as words, which the compiler does not split (row_packed.cuh).
template <typename T, int N>
struct Held {
  static constexpr int kPerWord = 4 / sizeof(T);
  unsigned int words[(N + kPerWord - 1) / kPerWord];

  __device__ Held() = default;
  __device__ Held(const Vector<T, N>& vector) {
    if constexpr (N * sizeof(T) >= 4) {
      *this = reinterpret_cast<const Held&>(vector);
    } else if constexpr (N * sizeof(T) == 2) {
      words[0] = reinterpret_cast<const unsigned short&>(vector);
    } else {
      words[0] = reinterpret_cast<const unsigned char&>(vector);
    }
  }
  __device__ auto operator[](int i) const { return unpack(words[i / kPerWord], i % kPerWord, T()); }
};

// A place that no window has: kernels reach 15 x 15.
constexpr int kNone = 255;

// How a schedule hands elements to a rule whose States are of one window, in float32.
template <typename T_>
struct OneWindow {
  using T = T_;
  using Value = float;
  static constexpr int kWindows = 1;

  static __device__ Value alone(T element) { return to_float(element); }
  template <int N>
  static __device__ Value last(const Packed<T, N>& row) {
    return row[N - 1];
  }
  template <int, int N>
  static __device__ Value pick(const Packed<T, N>& row, Value before, int column) {
    return column < 0 ? before : row[column];
  }
  template <int N>
  static __device__ Value lane(const Vector<T, N>& elements, int i) {
    return Held<T, N>(elements)[i];
  }
};

// The rule by which a schedule pools kCount neighbouring windows: one whose States are of two of
// them, where there is one and they are even in number.
template <class Rule, int kCount>
struct PairedRule {
  using type = Rule;
};
template <class Rule, int kCount>
using Paired = typename PairedRule<Rule, kCount>::type;

template <typename T_>
struct Mean : OneWindow<T_> {
  using T = T_;
  struct State {
    float sum;
  };
  static constexpr bool kTakesAsIs = true;
  T* y;

  __device__ explicit Mean(T* y) : y(y) {}

  __device__ const Mean& of(long long) const { return *this; }
  static __device__ float outside() { return 0.0f; }
  template <class Value>
  __device__ Value taken(const Value& x) const {
    return x;
  }
  static __device__ State empty(int) { return {0.0f}; }
  static __device__ State start(float x, int) { return {x}; }
  static __device__ State start_all(float x, int) { return {x}; }
  static __device__ void take(State& state, float x, int) { state.sum += x; }
  static __device__ void move(State&, int) {}
  static __device__ void merge(State& state, const State& row, int) { state.sum += row.sum; }
  template <Reuse kStores, int N>
  __device__ void store(long long p, const State (&state)[N], float scale) const {
    Vector<T, N> means;
#pragma unroll
    for (int i = 0; i < N; ++i) means[i] = from_float<T>(state[i].sum * scale);
    ::store<kStores>(y + p, means);
  }
};

// The root of the sum of squares.
template <typename T_>
struct Norm2 : Mean<T_> {
  using T = T_;
  using typename Mean<T>::State;
  using Mean<T>::Mean;

  __device__ const Norm2& of(long long) const { return *this; }
  static __device__ State start(float x, int) { return {x * x}; }
  static __device__ State start_all(float x, int) { return {x * x}; }
  static __device__ void take(State& state, float x, int) { state.sum = fmaf(x, x, state.sum); }
  template <Reuse kStores, int N>
  __device__ void store(long long p, const State (&state)[N], float) const {
    Vector<T, N> roots;
#pragma unroll
    for (int i = 0; i < N; ++i) roots[i] = from_float<T>(sqrt_fast(state[i].sum));
    ::store<kStores>(this->y + p, roots);
  }
};

template <typename T_>
struct MaxGradient {
  using T = T_;
  static constexpr bool kInput = false, kSums = false;
  struct Window {
    float dy;
    int place;
  };
  template <int N>
  struct Loaded {
    Held<T, N> dy;
    Held<unsigned char, N> place;
  };
  const T* dy;
  const unsigned char* offset;

  template <Reuse kReuse, int N>
  __device__ Loaded<N> load(long long p) const {
    return {::load<kReuse, N>(dy + p), ::load<kReuse, N>(offset + p)};
  }
  template <int N>
  static __device__ Loaded<N> none() {
    Vector<unsigned char, N> places;
#pragma unroll
    for (int i = 0; i < N; ++i) places[i] = kNone;
    return {filled<T, N>(0.0f), places};
  }
  static __device__ Window nothing() { return {0.0f, kNone}; }
  template <int N>
  static __device__ Window window(const Loaded<N>& loaded, int i) {
    return {loaded.dy[i], loaded.place[i]};
  }
  static __device__ Window below(const Window& w) {
    return {__shfl_down_sync(kWholeWarp, w.dy, 1), __shfl_down_sync(kWholeWarp, w.place, 1)};
  }
  static __device__ void add(float& sum, const Window& w, int place, float) {
    if (w.place == place) sum += w.dy;
  }
  template <class Run, class Places>
  struct Staged {
    Run dy;
    Places offset;
    static __device__ int taken(int length) { return Run::taken(length) + Places::taken(length); }
    __device__ Staged(const MaxGradient& own, long long start, int length, unsigned char* shared)
        : dy(own.dy, start, length, shared),
          offset(own.offset, start, length, shared + Run::taken(length)) {}
    __device__ Window operator()(long long p) const { return {to_float(dy[p]), offset[p]}; }
  };
};

// The same where relu has clipped windows; the gradient of the bias is the sum of the others.
// partial: [shares, channels], a share being a band of rows of one image.
template <typename T_>
struct BiasReluMaxGradient : MaxGradient<T_> {
  using T = T_;
  using typename MaxGradient<T>::Window;
  static constexpr bool kSums = true;
  float* partial;
  int channels;

  static __device__ float counted(const Window& w) { return w.place == kNone ? 0.0f : w.dy; }
  __device__ void write(long long plane, int band, int bands, float sum) const {
    const int image = static_cast<int>(plane) / channels;  // there are fewer than 2^31 planes
    const int channel = static_cast<int>(plane) % channels;
    const long long row = static_cast<long long>(image) * bands + band;
    store<Reuse::kSoon>(partial + row * channels + channel, Vector<float, 1>{{sum}});
  }
};

template <typename T_>
struct MeanGradient {
  using T = T_;
  static constexpr bool kInput = false, kSums = false;
  struct Window {
    float dy;
  };
  template <int N>
  struct Loaded {
    Held<T, N> dy;
  };
  const T* dy;

  template <Reuse kReuse, int N>
  __device__ Loaded<N> load(long long p) const {
    return {::load<kReuse, N>(dy + p)};
  }
  template <int N>
  static __device__ Loaded<N> none() {
    return {filled<T, N>(0.0f)};
  }
  static __device__ Window nothing() { return {0.0f}; }
  template <int N>
  static __device__ Window window(const Loaded<N>& loaded, int i) {
    return {loaded.dy[i]};
  }
  static __device__ Window below(const Window& w) {
    return {__shfl_down_sync(kWholeWarp, w.dy, 1)};
  }
  static __device__ void add(float& sum, const Window& w, int, float weight) {
    sum = fmaf(w.dy, weight, sum);
  }
  template <class Run, class>
  struct Staged {
    Run dy;
    static __device__ int taken(int length) { return Run::taken(length); }
    __device__ Staged(const MeanGradient& own, long long start, int length, unsigned char* shared)
        : dy(own.dy, start, length, shared) {}
    __device__ Window operator()(long long p) const { return {to_float(dy[p])}; }
  };
};

// d/dx of the root y of a sum of squares: x / y, and 0 where all of the window is 0.
template <typename T_>
struct Norm2Gradient {
  using T = T_;
  static constexpr bool kInput = true, kSums = false;
  struct Window {
    float share;  // dy / y
  };
  template <int N>
  struct Loaded {
    Held<T, N> dy, y;
  };
  const T* dy;
  const T* x;
  const T* y;

  static __device__ Window ratio(float dy, float y) {
    return {y == 0.0f ? 0.0f : dy * reciprocal_fast(y)};
  }
  template <Reuse kReuse, int N>
  __device__ Loaded<N> load(long long p) const {
    return {::load<kReuse, N>(dy + p), ::load<kReuse, N>(y + p)};
  }
  template <int N>
  static __device__ Loaded<N> none() {
    return {filled<T, N>(0.0f), filled<T, N>(0.0f)};
  }
  static __device__ Window nothing() { return {0.0f}; }
  template <int N>
  static __device__ Window window(const Loaded<N>& loaded, int i) {
    return ratio(loaded.dy[i], loaded.y[i]);
  }
  static __device__ Window below(const Window& w) {
    return {__shfl_down_sync(kWholeWarp, w.share, 1)};
  }
  static __device__ void add(float& sum, const Window& w, int, float) { sum += w.share; }
  template <class Run, class>
  struct Staged {
    Run dy, y;
    static __device__ int taken(int length) { return 2 * Run::taken(length); }
    __device__ Staged(const Norm2Gradient& own, long long start, int length, unsigned char* shared)
        : dy(own.dy, start, length, shared),
          y(own.y, start, length, shared + Run::taken(length)) {}
    __device__ Window operator()(long long p) const {
      return ratio(to_float(dy[p]), to_float(y[p]));
    }
  };
};
