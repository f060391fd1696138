// y = f(inputs), element by element, over one contiguous run.
//
// An operation brings its arithmetic and nothing else:
//
//   struct Scale {
//     static __device__ float apply(float x) { return 2.0f * x; }
//   };
//
// 1. One thread, one element would be correct, and short of bytes in flight.
// 2. A thread takes kLoads vectors of kBytes from every input and asks for all of them before it
//    touches the first: bytes in flight are threads x kLoads x kBytes x inputs.
// 3. Consecutive threads take consecutive vectors, so a warp access is whole lines.
// 4. A block takes one tile and ends; the hardware balances tiles better than a loop would.
// 5. The last tile guards each vector and ends by elements; where a pointer is not aligned for
//    vectors, everything goes by elements. Where types differ (a cast), the widest fills kBytes and
//    the others move as many elements in fewer bytes.
// 6. Nothing is read twice: loads skip L1; stores are evicted first unless the next kernel reads y.
#pragma once

#include "memory.cuh"

// First element of a block's tile. 64 bits before the product: 2^31 elements are 4 GiB of bfloat16.
__device__ inline long long tile_start(unsigned int block, int tile) {
  return static_cast<long long>(block) * tile;
}

// What `apply` returns for operations with two outputs.
struct Two {
  float first, second;
};

// The vectors of one input that one thread has in flight.
template <typename T, int kWidth, int kLoads>
struct InFlight {
  Vector<T, kWidth> at[kLoads];
};

// Vector k of a thread starts at element first + k * stride of the tile, of which `length` exist.
template <int kWidth, int kLoads, bool kWhole, typename T>
__device__ InFlight<T, kWidth, kLoads> load_vectors(const T* x, int first, int stride,
                                                    int length) {
  InFlight<T, kWidth, kLoads> loaded;
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = first + k * stride;
    if (kWhole || i + kWidth <= length) loaded.at[k] = load<Reuse::kNever, kWidth>(x + i);
  }
  return loaded;
}

// Where results go: one output, or two.
template <typename T>
struct Output {
  T* y;

  __device__ Output from(long long element) const { return {y + element}; }
  template <int kBytes>
  __device__ bool is_aligned() const {
    return aligned<kBytes>(y);
  }
  template <class Operation, Reuse kStores, int kWidth, typename... Vectors>
  __device__ void store(int i, const Vectors&... in) const {
    Vector<T, kWidth> out;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out[e] = from_float<T>(Operation::apply(to_float(in[e])...));
    ::store<kStores>(y + i, out);
  }
};

template <typename T>
struct OutputPair {
  T* first;
  T* second;

  __device__ OutputPair from(long long element) const {
    return {first + element, second + element};
  }
  template <int kBytes>
  __device__ bool is_aligned() const {
    return aligned<kBytes>(first) && aligned<kBytes>(second);
  }
  template <class Operation, Reuse kStores, int kWidth, typename... Vectors>
  __device__ void store(int i, const Vectors&... in) const {
    Vector<T, kWidth> one, other;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const Two out = Operation::apply(to_float(in[e])...);
      one[e] = from_float<T>(out.first);
      other[e] = from_float<T>(out.second);
    }
    ::store<kStores>(first + i, one);
    ::store<kStores>(second + i, other);
  }
};

template <class Operation, Reuse kStores, int kWidth, int kLoads, bool kWhole, class Outputs,
          typename... Loaded>
__device__ void store_vectors(const Outputs& y, int first, int stride, int length,
                              const Loaded&... in) {
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int i = first + k * stride;
    if (kWhole || i + kWidth <= length) {
      y.template store<Operation, kStores, kWidth>(i, in.at[k]...);
    }
  }
}

// Bytes of the largest of these types.
template <typename... Types>
__device__ constexpr int widest() {
  int most = 0;
  ((most = sizeof(Types) > most ? sizeof(Types) : most), ...);
  return most;
}

template <class Operation, int kBytes, int kLoads, Reuse kStores, typename T, class Outputs,
          typename... Inputs>
__device__ void elementwise_tile(const Outputs& y, long long n, const Inputs*... inputs) {
  constexpr int kWidth = kBytes / widest<T, Inputs...>();
  const int stride = blockDim.x * kWidth;
  const int tile = stride * kLoads;
  const int first = threadIdx.x * kWidth;
  const long long start = tile_start(blockIdx.x, tile);
  const bool vectors = (y.template is_aligned<kWidth * sizeof(T)>() && ... &&
                        aligned<kWidth * sizeof(Inputs)>(inputs));
  const Outputs own = y.from(start);
  if (vectors && n - start >= tile) {
    store_vectors<Operation, kStores, kWidth, kLoads, true>(
        own, first, stride, tile,
        load_vectors<kWidth, kLoads, true>(inputs + start, first, stride, tile)...);
    return;
  }
  const int length = n - start < tile ? static_cast<int>(n - start) : tile;
  int done = 0;
  if (vectors) {
    store_vectors<Operation, kStores, kWidth, kLoads, false>(
        own, first, stride, length,
        load_vectors<kWidth, kLoads, false>(inputs + start, first, stride, length)...);
    done = length - length % kWidth;
  }
  for (int i = done + threadIdx.x; i < length; i += blockDim.x) {
    own.template store<Operation, kStores, 1>(i, load<Reuse::kNever, 1>(inputs + start + i)...);
  }
}

// Launched with ceil(n / tile) blocks, tile = blockDim.x * kLoads * kBytes / the widest element.
template <class Operation, int kBytes, int kLoads, Reuse kStores, typename T, typename... Inputs>
__global__ void elementwise(T* y, long long n, const Inputs*... inputs) {
  elementwise_tile<Operation, kBytes, kLoads, kStores, T>(Output<T>{y}, n, inputs...);
}

// The same with two outputs.
template <class Operation, int kBytes, int kLoads, Reuse kStores, typename T, typename... Inputs>
__global__ void elementwise_pair(T* first, T* second, long long n, const Inputs*... inputs) {
  elementwise_tile<Operation, kBytes, kLoads, kStores, T>(OutputPair<T>{first, second}, n,
                                                          inputs...);
}
