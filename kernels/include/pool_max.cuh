// Rules of max-pooling (pool_rules.cuh says what a rule is), forward.
//
// 1. A window is a float32 and an integer: a conversion, two comparisons and two selections of every
//    element.
// 2. Two windows of 16 bits share a word, and their places another: a minimum, a comparison that
//    gives a mask, and two selections by bits, of two elements.
#pragma once

#include "pool_rules.cuh"

template <typename T>
struct OneMaximum : OneWindow<T> {
  struct State {
    float value;
    int place;
  };

  static __device__ float outside() { return Maximum::identity(); }
  static __device__ State empty(int place) { return {outside(), place}; }
  static __device__ State start(float value, int place) { return {value, place}; }
  static __device__ State start_all(float value, int place) { return {value, place}; }
  static __device__ void take(State& best, float value, int place) {
    take_larger(best.value, best.place, value, place);
  }
  static __device__ void move(State& row, int place) { row.place += place; }
  static __device__ void merge(State& best, const State& row, int place) {
    take(best, row.value, place + row.place);
  }
  // relu keeps the order, so it comes last; what it clips has no place.
  static __device__ State clipped(const State& best) {
    return {best.value < 0.0f ? 0.0f : best.value, best.value <= 0.0f ? kNone : best.place};
  }
  template <int N>
  static __device__ Vector<T, N> maxima(const State (&best)[N]) {
    Vector<T, N> values;
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = from_float<T>(best[i].value);
    return values;
  }
  template <int N>
  static __device__ Vector<unsigned char, N> places(const State (&best)[N]) {
    Vector<unsigned char, N> places;
#pragma unroll
    for (int i = 0; i < N; ++i) places[i] = static_cast<unsigned char>(best[i].place);
    return places;
  }
};

// Two elements of 16 bits in a word. kSince: the architecture that compares them at once, and finds
// the smaller ones.
template <typename T>
struct Two {
  static constexpr int kSince = 1 << 30;
};
template <>
struct Two<__half> {
  using Pair = __half2;
  static constexpr unsigned int kInfinities = 0x7c007c00u;
  static constexpr int kSince = 800;
};
template <>
struct Two<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr unsigned int kInfinities = 0x7f807f80u;
  static constexpr int kSince = 900;
};

template <typename T>
__device__ constexpr bool compares_pairs() {
#ifdef MEMBOUND_EMULATOR
  return sizeof(T) == 2;
#else
  return __CUDA_ARCH__ >= Two<T>::kSince;
#endif
}

constexpr unsigned int kEach = 0x00010001u;  // times a number: in both halves
constexpr unsigned int kSigns = 0x80008000u;

// Bits of `one` where the mask is set, else of `other`.
__device__ inline unsigned int select(unsigned int mask, unsigned int one, unsigned int other) {
  return (one & mask) | (other & ~mask);
}

// Windows o and o + 1, in the halves of words.
template <typename T_>
struct TwoMaxima {
  using T = T_;
  using Pair = typename Two<T>::Pair;
  using Value = unsigned int;
  static constexpr int kWindows = 2;
  struct State {
    unsigned int value, place;
  };

  static __device__ Pair pair(unsigned int word) { return reinterpret_cast<const Pair&>(word); }
  static __device__ unsigned int word(const Pair& pair) {
    return reinterpret_cast<const unsigned int&>(pair);
  }

  static __device__ Value alone(T element) {
    return static_cast<unsigned int>(reinterpret_cast<const unsigned short&>(element)) << 16;
  }
  template <int N>
  static __device__ Value last(const Packed<T, N>& row) {
    return row.words[N / 2 - 1];
  }
  // `before`: the word that ends before the row.
  template <int kStride, int N>
  static __device__ Value pick(const Packed<T, N>& row, Value before, int column) {
    const int next = column + kStride;
    const unsigned int low = column < 0 ? before : row.words[column / 2];
    const unsigned int which = (column & 1 ? 0x32u : 0x10u) | (next & 1 ? 0x7600u : 0x5400u);
    return __byte_perm(low, row.words[next / 2], which);
  }
  template <int N>
  static __device__ Value lane(const Vector<T, N>& elements, int i) {
    return reinterpret_cast<const Packed<T, N>&>(elements).words[i];
  }

  static __device__ float outside() { return Maximum::identity(); }
  static __device__ State empty(int place) {
    return {Two<T>::kInfinities | kSigns, static_cast<unsigned int>(place) * kEach};
  }
  static __device__ State start(Value value, int place) {
    return {value, static_cast<unsigned int>(place)};
  }
  static __device__ State start_all(Value value, int place) {
    return {value, static_cast<unsigned int>(place) * kEach};
  }
  // As take_larger: nothing but NaN is larger than NaN, for which infinity stands.
  static __device__ unsigned int larger(Value value, Value best) {
    const Pair most = __hmin2(pair(best), pair(Two<T>::kInfinities));
    return __hgtu2_mask(pair(value), most);
  }
  static __device__ void take_places(State& best, Value value, unsigned int places) {
    const unsigned int wins = larger(value, best.value);
    best = {select(wins, value, best.value), select(wins, places, best.place)};
  }
  static __device__ void take(State& best, Value value, int place) {
    take_places(best, value, static_cast<unsigned int>(place) * kEach);
  }
  static __device__ void move(State& row, int place) {
    row.place += static_cast<unsigned int>(place) * kEach;
  }
  static __device__ void merge(State& best, const State& row, int place) {
    take_places(best, row.value, row.place + static_cast<unsigned int>(place) * kEach);
  }
  static __device__ State clipped(const State& best) {
    const Pair zeros = pair(0u);
    return {best.value & ~__hlt2_mask(pair(best.value), zeros),
            best.place | (__hle2_mask(pair(best.value), zeros) & kNone * kEach)};
  }
  template <int N>
  static __device__ Vector<T, 2 * N> maxima(const State (&best)[N]) {
    Packed<T, 2 * N> values;
#pragma unroll
    for (int i = 0; i < N; ++i) values.words[i] = best[i].value;
    return values.vector();
  }
  template <int N>
  static __device__ Vector<unsigned char, 2 * N> places(const State (&best)[N]) {
    Vector<unsigned char, 2 * N> places;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      places[2 * i] = static_cast<unsigned char>(best[i].place);
      places[2 * i + 1] = static_cast<unsigned char>(best[i].place >> 16);
    }
    return places;
  }
};

template <typename T_, class Maxima = OneMaximum<T_>>
struct Max : Maxima {
  using T = T_;
  using typename Maxima::State;
  static constexpr bool kTakesAsIs = true;
  T* y;
  unsigned char* offset;

  __device__ Max(T* y, unsigned char* offset) : y(y), offset(offset) {}

  __device__ const Max& of(long long) const { return *this; }
  template <class Value>
  __device__ Value taken(const Value& x) const {
    return x;
  }
  template <Reuse kStores, int N>
  __device__ void store(long long p, const State (&best)[N], float) const {
    ::store<kStores>(y + p, Maxima::maxima(best));
    ::store<kStores>(offset + p, Maxima::places(best));
  }
};

// max of relu(x + bias), x + bias rounded as a layer of its own would store it: the bias is one per
// channel.
template <typename T_, class Maxima = OneMaximum<T_>>
struct BiasReluMax : Max<T_, Maxima> {
  using T = T_;
  using typename Maxima::State;
  using typename Maxima::Value;
  static constexpr bool kTakesAsIs = false;
  const T* channel_bias;
  int channels;
  T bias;  // of this plane

  __device__ BiasReluMax(T* y, unsigned char* offset, const T* channel_bias, int channels)
      : Max<T, Maxima>(y, offset), channel_bias(channel_bias), channels(channels), bias() {}

  __device__ BiasReluMax of(long long plane) const {
    BiasReluMax own = *this;
    const int channel = static_cast<int>(plane) % channels;  // there are fewer than 2^31 planes
    own.bias = load<Reuse::kSoon, 1>(channel_bias + channel)[0];
    return own;
  }
  __device__ Value taken(const Value& x) const {
    if constexpr (Maxima::kWindows == 2) {
      return Maxima::word(__hadd2(Maxima::pair(x), {bias, bias}));
    } else {
      return to_float(from_float<T>(x + to_float(bias)));
    }
  }
  template <int N>
  __device__ Packed<T, N> taken(const Packed<T, N>& x) const {
    if constexpr (Maxima::kWindows == 2) {
      Packed<T, N> sums;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums.words[i] = taken(x.words[i]);
      return sums;
    } else {
      float sums[N];
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] = x[i] + to_float(bias);
      return Packed<T, N>::rounded(sums);
    }
  }
  template <Reuse kStores, int N>
  __device__ void store(long long p, const State (&best)[N], float scale) const {
    State clipped[N];
#pragma unroll
    for (int i = 0; i < N; ++i) clipped[i] = Maxima::clipped(best[i]);
    Max<T, Maxima>::template store<kStores>(p, clipped, scale);
  }
};

template <bool kPairs, typename T>
struct MaximaOf {
  using type = OneMaximum<T>;
};
template <typename T>
struct MaximaOf<true, T> {
  using type = TwoMaxima<T>;
};

template <typename T, int kCount>
struct PairedRule<Max<T>, kCount> {
  using type = Max<T, typename MaximaOf<compares_pairs<T>() && kCount % 2 == 0, T>::type>;
};
template <typename T, int kCount>
struct PairedRule<BiasReluMax<T>, kCount> {
  using type = BiasReluMax<T, typename MaximaOf<compares_pairs<T>() && kCount % 2 == 0, T>::type>;
};
