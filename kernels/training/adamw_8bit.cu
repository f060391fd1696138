// AdamW whose moments are codes of 8 bits with one float32 scale for 256 of them.
//
// 1. Decoded moments in memory of their own: 16 bytes more in, and 16 out.
// 2. A warp has a block of 256: it decodes, steps, finds the largest of both moments by shuffles
//    and encodes them again, all in registers. A lane has twice four neighbours, so that accesses to
//    parameters are 16 bytes, those to codes four, and a warp touches whole sectors of either.
// 3. The last block, and all of them where a pointer is not aligned, go by elements.
#include "adamw.cuh"
#include "memory.cuh"
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
__device__ inline float code_of(float value, float per_scale, float codes) {
  const float code = rintf(value * per_scale);
  return fminf(fmaxf(code == code ? code : 0.0f, -codes), codes);
}

template <int kThreads, Reuse kStores>
__global__ void adamw_8bit(float* new_p, signed char* new_m, unsigned char* new_r,
                           float* new_m_scale, float* new_r_scale, long long n, float decay,
                           float beta1, float rest1, float beta2, float rest2, float rate,
                           float correction, float eps, const float* p, const float* g,
                           const signed char* m, const unsigned char* r, const float* m_scale,
                           const float* r_scale) {
  const Numbers numbers{decay, beta1, rest1, beta2, rest2, rate, correction, eps};
  const long long block =
      static_cast<long long>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (block * kBlock >= n) return;
  const bool whole = (block + 1) * kBlock <= n && aligned<16>(p) && aligned<16>(g) &&
                     aligned<16>(new_p) && aligned<4>(m) && aligned<4>(r) && aligned<4>(new_m) &&
                     aligned<4>(new_r);
  const long long first = block * kBlock + threadIdx.x % kWarp * kEach;

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
  float largest = 0.0f, largest_root = 0.0f;
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float old_root = static_cast<float>(rs[k][e]) * r_unit;
      const float v = numbers.second(gs[k][e], old_root * old_root);
      moment[k][e] = numbers.first(gs[k][e], static_cast<float>(ms[k][e]) * m_unit);
      root[k][e] = sqrt_fast(v);
      ps[k][e] = numbers.stepped(numbers.decayed(ps[k][e]), moment[k][e], v);
      largest = Maximum::apply(largest, fabsf(moment[k][e]));
      largest_root = Maximum::apply(largest_root, root[k][e]);
    }
  }
  const float scale = scale_of(reduce_lanes<Maximum>(largest), kLargest);
  const float root_scale = scale_of(reduce_lanes<Maximum>(largest_root), kLargestRoot);
  const float per_scale = 1.0f / scale, per_root = 1.0f / root_scale;
#pragma unroll
  for (int k = 0; k < kTimes; ++k) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      ms[k][e] = static_cast<signed char>(code_of(moment[k][e], per_scale, kLargest));
      rs[k][e] = static_cast<unsigned char>(code_of(root[k][e], per_root, kLargestRoot));
    }
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
