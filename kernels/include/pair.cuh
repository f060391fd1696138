// Two elements at once: two of float32, for which sm_100 and later have instructions of their own,
// and the larger of two words of 16 bits, from sm_80 on.
#pragma once

#include "math.cuh"
#include "row_packed.cuh"

#if !defined(MEMBOUND_EMULATOR) && __CUDA_ARCH__ >= 1000
#define MEMBOUND_COMPUTES_PAIRS 1
#endif

struct Pair {
  float first, second;

#ifdef MEMBOUND_COMPUTES_PAIRS
  __device__ unsigned long long both() const {
    unsigned long long bits;
    asm("mov.b64 %0, {%1, %2};" : "=l"(bits) : "f"(first), "f"(second));
    return bits;
  }
  static __device__ Pair of(unsigned long long bits) {
    Pair pair;
    asm("mov.b64 {%0, %1}, %2;" : "=f"(pair.first), "=f"(pair.second) : "l"(bits));
    return pair;
  }
#endif

  __device__ Pair operator+(const Pair& other) const {
#ifdef MEMBOUND_COMPUTES_PAIRS
    unsigned long long sum;
    asm("add.rn.f32x2 %0, %1, %2;" : "=l"(sum) : "l"(both()), "l"(other.both()));
    return of(sum);
#else
    return {first + other.first, second + other.second};
#endif
  }
  __device__ Pair operator*(float factor) const {
#ifdef MEMBOUND_COMPUTES_PAIRS
    unsigned long long product;
    const Pair twice{factor, factor};
    asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(product) : "l"(both()), "l"(twice.both()));
    return of(product);
#else
    return {first * factor, second * factor};
#endif
  }
  // Both times `factor`, plus `term`, rounded once.
  __device__ Pair times_plus(float factor, float term) const {
#ifdef MEMBOUND_COMPUTES_PAIRS
    unsigned long long sum;
    const Pair factors{factor, factor}, terms{term, term};
    asm("fma.rn.f32x2 %0, %1, %2, %3;"
        : "=l"(sum)
        : "l"(both()), "l"(factors.both()), "l"(terms.both()));
    return of(sum);
#else
    return {fmaf(first, factor, term), fmaf(second, factor, term)};
#endif
  }
  __device__ Pair operator-(float other) const { return *this + Pair{-other, -other}; }
};

// a * b + c, rounded once.
__device__ inline Pair fused(const Pair& a, const Pair& b, const Pair& c) {
#ifdef MEMBOUND_COMPUTES_PAIRS
  unsigned long long sum;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(sum) : "l"(a.both()), "l"(b.both()), "l"(c.both()));
  return Pair::of(sum);
#else
  return {fmaf(a.first, b.first, c.first), fmaf(a.second, b.second, c.second)};
#endif
}

__device__ inline Pair exp2_fast(const Pair& x) {
  return {exp2_fast(x.first), exp2_fast(x.second)};
}

// Elements i and i + 1.
template <typename T, int N>
__device__ Pair pair_at(const Packed<T, N>& vector, int i) {
  return {vector[i], vector[i + 1]};
}

template <typename T, int N>
__device__ Packed<T, N> rounded(const Pair (&pairs)[N / 2]) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = i % 2 ? pairs[i / 2].second : pairs[i / 2].first;
  return Packed<T, N>::rounded(values);
}

template <typename T>
struct TwoInWord {
  using Type = __half2;
};
template <>
struct TwoInWord<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};

// The larger elements of two words; a NaN is overlooked beside a number.
template <typename T>
__device__ unsigned int larger(unsigned int a, unsigned int b) {
  using Two = typename TwoInWord<T>::Type;
  const Two found = __hmax2(reinterpret_cast<const Two&>(a), reinterpret_cast<const Two&>(b));
  return reinterpret_cast<const unsigned int&>(found);
}

template <typename T>
__device__ constexpr bool compares_words() {
#ifdef MEMBOUND_EMULATOR
  return sizeof(T) == 2;
#else
  return sizeof(T) == 2 && __CUDA_ARCH__ >= 800;
#endif
}

// Of everything in these vectors. NaN only where nothing else is there.
template <int kVectors, typename T, int N>
__device__ float largest_of(const Packed<T, N> (&vectors)[kVectors]) {
  if constexpr (compares_words<T>()) {
    constexpr int kWords = Packed<T, N>::kWords;
    unsigned int word = vectors[0].words[0];
#pragma unroll
    for (int i = 1; i < kVectors * kWords; ++i) {
      word = larger<T>(word, vectors[i / kWords].words[i % kWords]);
    }
    return fmaxf(unpack(word, 0, T()), unpack(word, 1, T()));
  } else {
    float found = vectors[0][0];
#pragma unroll
    for (int i = 1; i < kVectors * N; ++i) found = fmaxf(found, vectors[i / N][i % N]);
    return found;
  }
}
