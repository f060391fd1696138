// Rotary position embedding of query and key heads, forward and, with -sin, backward.
//
// 1. PyTorch's chain writes x * cos, the swapped halves, their product with sin, and the sum: every
//    step reads and writes all heads, and the tables are read for each of them.
// 2. One thread a pair: right, and an access is one element.
// 3. A thread takes one vector (interleaved: its pairs lie inside) or two (half: one from each half)
//    from each of kHeads heads, asks for all of them, and for its cosines and sines once. The other
//    threads of the token find these in L1.
// 4. Heads of queries and keys are one list, so that a block has whole tokens and one launch does
//    both.
#include "memory.cuh"

enum class Pairs { kHalf, kInterleaved };

template <int N, typename T>
__device__ Vector<T, N> load_elements(const T* p, bool vectors) {
  if (vectors) return load<Reuse::kNever, N>(p);
  Vector<T, N> elements;
#pragma unroll
  for (int i = 0; i < N; ++i) elements[i] = load<Reuse::kNever, 1>(p + i)[0];
  return elements;
}

template <Reuse kStores, typename T, int N>
__device__ void store_elements(T* p, const float (&values)[N], bool vectors) {
  const Vector<T, N> elements = from_floats<T>(values);
  if (vectors) {
    store<kStores>(p, elements);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) store<kStores>(p + i, Vector<T, 1>{{elements[i]}});
  }
}

template <int N>
__device__ void load_table(const float* p, bool vectors, float (&values)[N]) {
  if (vectors) {
    to_floats(load<Reuse::kSoon, N>(p), values);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = load<Reuse::kSoon, 1>(p + i)[0];
  }
}

// The pairs that a thread has in one head.
template <Pairs kPairs, typename T, int kWidth>
struct Held;

template <typename T, int kWidth>
struct Held<Pairs::kHalf, T, kWidth> {
  static constexpr int kCount = kWidth;
  Vector<T, kWidth> a, b;

  __device__ void load(const T* head, int vector, int width, bool vectors) {
    a = load_elements<kWidth>(head + vector * kWidth, vectors);
    b = load_elements<kWidth>(head + vector * kWidth + width / 2, vectors);
  }
  template <Reuse kStores>
  __device__ void turn(T* head, int vector, int width, bool vectors, const float (&cos)[kCount],
                       const float (&sin)[kCount]) const {
    float first[kWidth], second[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float x = to_float(a[i]), y = to_float(b[i]);
      first[i] = x * cos[i] - y * sin[i];
      second[i] = y * cos[i] + x * sin[i];
    }
    store_elements<kStores>(head + vector * kWidth, first, vectors);
    store_elements<kStores>(head + vector * kWidth + width / 2, second, vectors);
  }
};

template <typename T, int kWidth>
struct Held<Pairs::kInterleaved, T, kWidth> {
  static constexpr int kCount = kWidth / 2;
  Vector<T, kWidth> both;

  __device__ void load(const T* head, int vector, int, bool vectors) {
    both = load_elements<kWidth>(head + vector * kWidth, vectors);
  }
  template <Reuse kStores>
  __device__ void turn(T* head, int vector, int, bool vectors, const float (&cos)[kCount],
                       const float (&sin)[kCount]) const {
    float out[kWidth];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = to_float(both[2 * i]), y = to_float(both[2 * i + 1]);
      out[2 * i] = x * cos[i] - y * sin[i];
      out[2 * i + 1] = y * cos[i] + x * sin[i];
    }
    store_elements<kStores>(head + vector * kWidth, out, vectors);
  }
};

// A block has `tokens_of_block` tokens; its work is a list of (token, kHeads heads, vector).
// sign: -1 turns back. vectors: whether every tensor is aligned for them.
template <Pairs kPairs, typename T, int kWidth, int kHeads, Reuse kStores>
__global__ void rope(T* q_out, T* k_out, const T* q, const T* k, const float* cos,
                     const float* sin, long long tokens, int q_heads, int k_heads, int width,
                     int tokens_of_block, float sign, int vectors) {
  using Pair = Held<kPairs, T, kWidth>;
  constexpr int kCount = Pair::kCount;
  const int q_groups = (q_heads + kHeads - 1) / kHeads, k_groups = (k_heads + kHeads - 1) / kHeads;
  const int vectors_of_head = width / 2 / kCount;
  const int of_token = (q_groups + k_groups) * vectors_of_head;
  const long long start = static_cast<long long>(blockIdx.x) * tokens_of_block;
  const int here =
      tokens - start < tokens_of_block ? static_cast<int>(tokens - start) : tokens_of_block;
  for (int item = threadIdx.x; item < here * of_token; item += blockDim.x) {
    const long long token = start + item / of_token;
    const int vector = item % of_token % vectors_of_head;
    const int group = item % of_token / vectors_of_head;
    const bool query = group < q_groups;
    const int heads = query ? q_heads : k_heads;
    const int first = (query ? group : group - q_groups) * kHeads;
    const long long at = (token * heads + first) * width;
    const T* const in = (query ? q : k) + at;
    T* const out = (query ? q_out : k_out) + at;

    Pair held[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h < heads) held[h].load(in + h * width, vector, width, vectors);
    }
    float c[kCount], s[kCount];
    const long long angle = token * (width / 2) + vector * kCount;
    load_table(cos + angle, vectors, c);
    load_table(sin + angle, vectors, s);
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] *= sign;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h < heads) {
        held[h].template turn<kStores>(out + h * width, vector, width, vectors, c, s);
      }
    }
  }
}
