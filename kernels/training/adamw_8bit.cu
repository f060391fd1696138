// AdamW whose moments are codes of 8 bits with one float32 scale for 256 of them.
//
// 1. Moments decoded into memory of their own, a step, moments encoded: five kernels, 48 bytes a
//    parameter where 16 must move.
// 2. A warp has a block of 256: it decodes, steps, finds the largest of both moments by shuffles
//    and encodes them again, all in registers. A lane has twice four neighbours, so that accesses to
//    parameters are 16 bytes, those to codes four, and a warp touches whole sectors of either.
// 3. The last block, and all of them where a pointer is not aligned, go by elements.
#include "adamw.cuh"
#include "convert.cuh"
#include "reduce.cuh"

constexpr int kBlock = 256, kEach = 4, kTimes = kBlock / kWarp / kEach;
constexpr float kLargest = 127.0f, kLargestRoot = 255.0f;

// Elements i to i + 3, those from n on as zeros.
template <typename T>
__device__ Vector<T, kEach> load_four(const T* x, long long i, long long n, bool whole) {
  if (whole) return load<Reuse::kNever, kEach>(x + i);
  Vector<T, kEach> values;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    values[e] = i + e < n ? load<Reuse::kNever, 1>(x + i + e)[0] : static_cast<T>(0);
  }
  return values;
}

template <Reuse kStores, typename T>
__device__ void store_four(T* y, long long i, long long n, bool whole,
                           const Vector<T, kEach>& values) {
  if (whole) return store<kStores>(y + i, values);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (i + e < n) store<kStores>(y + i + e, Vector<T, 1>{{values[e]}});
  }
}

// A scale whose reciprocal is finite, or what is not finite in the block.
__device__ inline float scale_of(float largest, float codes) {
  const float scale = largest / codes;
  return scale < 1.1754944e-38f ? 1.1754944e-38f : scale;
}

// 0 where the scale is not finite: code times scale is NaN then.
__device__ inline signed char code_of(float scaled, signed char) {
  return static_cast<signed char>(Int8::encode_one(scaled));
}
__device__ inline unsigned char code_of(float scaled, unsigned char) {
  return static_cast<unsigned char>(Uint8::encode_one(scaled));
}

// Block of 256 of a warp, and the first element of a lane.
template <int kThreads>
__device__ long long own_block() {
  return static_cast<long long>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
}
__device__ inline long long first_of_lane(long long block) {
  return block * kBlock + threadIdx.x % kWarp * kEach;
}

// Codes of a warp's block, whose largest becomes `most`, and their scale.
template <typename Code>
__device__ float encode_block(const float (&values)[kTimes][kEach], float most,
                              Vector<Code, kEach> (&codes)[kTimes]) {
  float largest = 0.0f;
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) largest = Maximum::apply(largest, fabsf(values[k][e]));
  }
  const float scale = scale_of(reduce_lanes<Maximum>(largest), most);
  const float per_scale = 1.0f / scale;
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) codes[k][e] = code_of(values[k][e] * per_scale, Code());
  }
  return scale;
}

template <int kThreads, Reuse kStores>
__global__ void adamw_8bit(float* new_p, signed char* new_m, unsigned char* new_r,
                           float* new_m_scale, float* new_r_scale, long long n, float decay,
                           float beta1, float rest1, float beta2, float rest2, float rate,
                           float correction, float eps, const float* p, const float* g,
                           const signed char* m, const unsigned char* r, const float* m_scale,
                           const float* r_scale) {
  const Numbers numbers{decay, beta1, rest1, beta2, rest2, rate, correction, eps};
  const long long block = own_block<kThreads>();
  if (block * kBlock >= n) return;
  const bool whole = (block + 1) * kBlock <= n && aligned<16>(p) && aligned<16>(g) &&
                     aligned<16>(new_p) && aligned<4>(m) && aligned<4>(r) && aligned<4>(new_m) &&
                     aligned<4>(new_r);
  const long long first = first_of_lane(block);

  Vector<float, kEach> ps[kTimes], gs[kTimes];
  Vector<signed char, kEach> ms[kTimes];
  Vector<unsigned char, kEach> rs[kTimes];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
    const long long i = first + k * kWarp * kEach;
    ps[k] = load_four(p, i, n, whole);
    gs[k] = load_four(g, i, n, whole);
    ms[k] = load_four(m, i, n, whole);
    rs[k] = load_four(r, i, n, whole);
  }
  const float m_unit = load<Reuse::kNever, 1>(m_scale + block)[0];
  const float r_unit = load<Reuse::kNever, 1>(r_scale + block)[0];

  float moment[kTimes][kEach], root[kTimes][kEach];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float old_root = static_cast<float>(rs[k][e]) * r_unit;
      const float v = numbers.second(gs[k][e], old_root * old_root);
      moment[k][e] = numbers.first(gs[k][e], static_cast<float>(ms[k][e]) * m_unit);
      root[k][e] = sqrt_fast(v);
      ps[k][e] = numbers.stepped(numbers.decayed(ps[k][e]), moment[k][e], v);
    }
  }
  const float scale = encode_block(moment, kLargest, ms);
  const float root_scale = encode_block(root, kLargestRoot, rs);
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
    const long long i = first + k * kWarp * kEach;
    store_four<kStores>(new_p, i, n, whole, ps[k]);
    store_four<kStores>(new_m, i, n, whole, ms[k]);
    store_four<kStores>(new_r, i, n, whole, rs[k]);
  }
  if (threadIdx.x % kWarp == 0) {
    store<kStores>(new_m_scale + block, Vector<float, 1>{{scale}});
    store<kStores>(new_r_scale + block, Vector<float, 1>{{root_scale}});
  }
}

// ---- the steps that run apart; kRoot: of the second moment, whose codes are of its root ----------

template <typename Code, bool kRoot, int kThreads, Reuse kStores>
__global__ void adamw_8bit_decode(float* y, long long n, const Code* q, const float* scale) {
  const long long block = own_block<kThreads>();
  if (block * kBlock >= n) return;
  const bool whole = (block + 1) * kBlock <= n && aligned<16>(y) && aligned<4>(q);
  const long long first = first_of_lane(block);
  Vector<Code, kEach> codes[kTimes];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) codes[k] = load_four(q, first + k * kWarp * kEach, n, whole);
  const float unit = load<Reuse::kNever, 1>(scale + block)[0];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
    Vector<float, kEach> values;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float value = static_cast<float>(codes[k][e]) * unit;
      values[e] = kRoot ? value * value : value;
    }
    store_four<kStores>(y, first + k * kWarp * kEach, n, whole, values);
  }
}

template <typename Code, bool kRoot, int kThreads, Reuse kStores>
__global__ void adamw_8bit_encode(Code* q, float* scale, long long n, const float* x) {
  const long long block = own_block<kThreads>();
  if (block * kBlock >= n) return;
  const bool whole = (block + 1) * kBlock <= n && aligned<16>(x) && aligned<4>(q);
  const long long first = first_of_lane(block);
  Vector<float, kEach> xs[kTimes];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) xs[k] = load_four(x, first + k * kWarp * kEach, n, whole);
  float values[kTimes][kEach];
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) values[k][e] = kRoot ? sqrt_fast(xs[k][e]) : xs[k][e];
  }
  Vector<Code, kEach> codes[kTimes];
  const float found = encode_block(values, kRoot ? kLargestRoot : kLargest, codes);
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
    store_four<kStores>(q, first + k * kWarp * kEach, n, whole, codes[k]);
  }
  if (threadIdx.x % kWarp == 0) store<kStores>(scale + block, Vector<float, 1>{{found}});
}
