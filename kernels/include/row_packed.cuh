// Vectors that wait in registers: for the next row, for the statistic of this one.
//
// As an array of 16-bit elements, a vector that lives across a loop costs a register per element,
// because the compiler splits it; as 32-bit words it costs half of that. Elements become float32
// where they are used and are rounded in pairs.
#pragma once

#include "memory.cuh"

// Two elements of 16 bits, or one of 32, and what they are as float32.
template <typename T>
struct Word {
  static constexpr int kElements = 4 / sizeof(T);
  T elements[kElements];
};

__device__ inline float unpack(unsigned int word, int, float) {
  return reinterpret_cast<const float&>(word);
}
__device__ inline float unpack(unsigned int word, int i, __half) {
  return to_float(reinterpret_cast<const Word<__half>&>(word).elements[i]);
}
// bfloat16 is the upper half of a float32.
__device__ inline float unpack(unsigned int word, int i, __nv_bfloat16) {
  const unsigned int bits = i ? word & 0xffff0000u : word << 16;
  return reinterpret_cast<const float&>(bits);
}

template <typename T>
__device__ unsigned int pack(const float* values) {
  if constexpr (sizeof(T) == 4) {
    return reinterpret_cast<const unsigned int&>(values[0]);
  } else {
    Word<T> word;
    word.elements[0] = from_float<T>(values[0]);
    word.elements[1] = from_float<T>(values[1]);
    return reinterpret_cast<const unsigned int&>(word);
  }
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Packed {
  static constexpr int kPerWord = 4 / sizeof(T);
  static constexpr int kWords = N / kPerWord;
  static_assert(kWords >= 1, "whole words");
  unsigned int words[kWords];

  __device__ float operator[](int i) const {
    return unpack(words[i / kPerWord], i % kPerWord, T());
  }

  static __device__ Packed rounded(const float (&values)[N]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kWords; ++i) packed.words[i] = pack<T>(values + i * kPerWord);
    return packed;
  }

  static __device__ Packed zeros() {
    Packed packed;
#pragma unroll
    for (int i = 0; i < kWords; ++i) packed.words[i] = 0u;
    return packed;
  }

  static __device__ Packed filled(float value) {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = value;
    return rounded(values);
  }

  static __device__ Packed of(const Vector<T, N>& vector) {
    return reinterpret_cast<const Packed&>(vector);
  }

  __device__ Vector<T, N> vector() const { return reinterpret_cast<const Vector<T, N>&>(*this); }

  // Across a barrier the compiler keeps what it has already unpacked, at twice the registers. A
  // zero that only run time knows hides that the words are the same: they are unpacked again.
  __device__ void hide(unsigned int zero) {
    if constexpr (sizeof(T) < 4) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] ^= zero;
    }
  }
};

// A vector that waits in registers: as whole words, where it has any.
template <typename T, int N>
__device__ auto held(const Vector<T, N>& vector) {
  if constexpr (N * sizeof(T) >= 4) return Packed<T, N>::of(vector);
  else return vector;
}
template <typename T, int N>
__device__ float value_of(const Packed<T, N>& vector, int i) {
  return vector[i];
}
template <typename T, int N>
__device__ float value_of(const Vector<T, N>& vector, int i) {
  return to_float(vector[i]);
}

template <typename T, int N>
__device__ Vector<T, N> vector_of(const Packed<T, N>& packed) {
  return packed.vector();
}
template <typename T, int N>
__device__ Vector<T, N> vector_of(const Vector<T, N>& vector) {
  return vector;
}

// The sign bit of a float that is never negative.
__device__ inline unsigned int runtime_zero(const float& positive) {
  return reinterpret_cast<const unsigned int&>(positive) >> 31;
}

template <int kVectors, typename T, int N>
__device__ void hide(Packed<T, N> (&vectors)[kVectors], unsigned int zero) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) vectors[k].hide(zero);
}

// N elements of low and high, laid end to end, from element `offset` on (0 to N - 1).
template <typename T, int N>
__device__ Packed<T, N> splice(const Packed<T, N>& low, const Packed<T, N>& high, int offset) {
  constexpr int kWords = Packed<T, N>::kWords;
  constexpr int kPerWord = Packed<T, N>::kPerWord;
  unsigned int words[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = low.words[i];
    words[kWords + i] = high.words[i];
  }
  // By halves of a vector, then quarters: registers cannot be indexed at run time.
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < kWords + step; ++i) {
      if (offset / kPerWord & step) words[i] = words[i + step];
    }
  }
  Packed<T, N> spliced;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const unsigned long long pair = static_cast<unsigned long long>(words[i + 1]) << 32 | words[i];
    spliced.words[i] = static_cast<unsigned int>(pair >> offset % kPerWord * 16);
  }
  return spliced;
}
