// Every access to global memory: width, cache hint and conversion in one place.
//
// A kernel loads vectors (up to 16 bytes; 32 on sm_100 and later), several before it uses the
// first, computes in float32 and stores vectors. Vectors stay packed until an element is read, so
// that eight bfloat16 in flight cost four registers.
//
//   auto v = load<Reuse::kNever, 8>(x + i);       // 16 bytes of bfloat16
//   float first = to_float(v[0]);
//   store<Reuse::kNever>(y + i, v);
//
// The emulator replaces the three accesses at the end of this file by ones that check bounds and
// alignment and count bytes and sectors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Whether anyone reads these bytes again soon: kNever streams past the cache (loads skip L1,
// stores are evicted first), kSoon leaves them in it.
enum class Reuse { kNever, kSoon };

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  static_assert((N & (N - 1)) == 0 && N * sizeof(T) <= 32, "1 to 32 bytes, a power of two");
  T elements[N];
  __device__ T& operator[](int i) { return elements[i]; }
  __device__ const T& operator[](int i) const { return elements[i]; }
};

template <typename T, int kBytes>
__device__ constexpr int elements_in() {
  return kBytes / static_cast<int>(sizeof(T));
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <typename T, int N>
__device__ void to_floats(const Vector<T, N>& vector, float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = to_float(vector[i]);
}

template <typename T, int N>
__device__ Vector<T, N> from_floats(const float (&values)[N]) {
  Vector<T, N> vector;
#pragma unroll
  for (int i = 0; i < N; ++i) vector[i] = from_float<T>(values[i]);
  return vector;
}

// Whether vectors of kBytes may be read or written at p.
template <int kBytes>
__device__ inline bool aligned(const void* p) {
  return reinterpret_cast<unsigned long long>(p) % kBytes == 0;
}

#ifndef MEMBOUND_EMULATOR

// Bits of a vector as the registers that a load fills or a store drains.
template <int kBytes>
struct Bits {
  alignas(kBytes) unsigned int words[kBytes / 4];
};
template <>
struct Bits<2> {
  unsigned short words[1];
};
template <>
struct Bits<1> {
  unsigned char words[1];
};

// What a kernel may write later is not read by way of the read-only path.
#ifdef MEMBOUND_IN_PLACE
#define LOAD_ONCE "ld.global.L1::no_allocate"
#else
#define LOAD_ONCE "ld.global.nc.L1::no_allocate"
#endif

template <typename Bits32>
__device__ inline void load_streaming(const void* p, Bits32& bits) {
  constexpr int kBytes = sizeof(Bits32);
  auto& w = bits.words;
  if constexpr (kBytes == 1) {
    unsigned short byte;
    asm(LOAD_ONCE ".b8 %0, [%1];" : "=h"(byte) : "l"(p));
    w[0] = static_cast<unsigned char>(byte);
  } else if constexpr (kBytes == 2) {
    asm(LOAD_ONCE ".b16 %0, [%1];" : "=h"(w[0]) : "l"(p));
  } else if constexpr (kBytes == 4) {
    asm(LOAD_ONCE ".b32 %0, [%1];" : "=r"(w[0]) : "l"(p));
  } else if constexpr (kBytes == 8) {
    asm(LOAD_ONCE ".v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p));
  } else if constexpr (kBytes == 16) {
    asm(LOAD_ONCE ".v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
        : "l"(p));
  } else {
    static_assert(kBytes == 32, "1 to 32 bytes");
#if __CUDA_ARCH__ >= 1000
    asm(LOAD_ONCE ".v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]),
          "=r"(w[7])
        : "l"(p));
#else
    asm(LOAD_ONCE ".v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
        : "l"(p));
    asm(LOAD_ONCE ".v4.b32 {%0, %1, %2, %3}, [%4+16];"
        : "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7])
        : "l"(p));
#endif
  }
}

template <typename Bits32>
__device__ inline void store_streaming(void* p, const Bits32& bits) {
  constexpr int kBytes = sizeof(Bits32);
  const auto& w = bits.words;
  if constexpr (kBytes == 1) {
    asm volatile("st.global.cs.b8 [%0], %1;" ::"l"(p), "h"(static_cast<unsigned short>(w[0]))
                 : "memory");
  } else if constexpr (kBytes == 2) {
    asm volatile("st.global.cs.b16 [%0], %1;" ::"l"(p), "h"(w[0]) : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("st.global.cs.b32 [%0], %1;" ::"l"(p), "r"(w[0]) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.cs.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
  } else if constexpr (kBytes == 16) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
  } else {
    static_assert(kBytes == 32, "1 to 32 bytes");
#if __CUDA_ARCH__ >= 1000
    asm volatile("st.global.cs.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(p), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), "r"(w[7])
                 : "memory");
#else
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
    asm volatile("st.global.cs.v4.b32 [%0+16], {%1, %2, %3, %4};" ::"l"(p), "r"(w[4]), "r"(w[5]),
                 "r"(w[6]), "r"(w[7])
                 : "memory");
#endif
  }
}

#endif  // MEMBOUND_EMULATOR

// N elements at p, which is aligned for them. This kernel does not write them, or is built with
// MEMBOUND_IN_PLACE, and whoever writes an element has read it before.
template <Reuse kReuse, int N, typename T>
__device__ Vector<T, N> load(const T* p) {
#ifdef MEMBOUND_EMULATOR
  return ::emulator::load<Vector<T, N>>(p);
#else
  if constexpr (kReuse == Reuse::kNever) {
    Bits<N * sizeof(T)> bits;
    load_streaming(p, bits);
    return reinterpret_cast<const Vector<T, N>&>(bits);
  } else {
    return *reinterpret_cast<const Vector<T, N>*>(p);
  }
#endif
}

// One element that another block of this kernel may have written before a fence.
template <typename T>
__device__ T load_written(const T* p) {
#ifdef MEMBOUND_EMULATOR
  return ::emulator::load<Vector<T, 1>>(p)[0];
#else
  return *const_cast<const volatile T*>(p);
#endif
}

template <Reuse kReuse, int N, typename T>
__device__ void store(T* p, const Vector<T, N>& vector) {
#ifdef MEMBOUND_EMULATOR
  ::emulator::store(p, vector);
#else
  if constexpr (kReuse == Reuse::kNever) {
    store_streaming(p, reinterpret_cast<const Bits<N * sizeof(T)>&>(vector));
  } else {
    *reinterpret_cast<Vector<T, N>*>(p) = vector;
  }
#endif
}
