// Codes of floats and floats of codes: by include/convert.cuh, by its arithmetic where instructions
// could do it, and by the toolkit's own header.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "convert.cuh"

constexpr int kFormats = 3;

__device__ inline void put(unsigned short* to, const unsigned int (&codes)[kFormats], long long i,
                           long long n) {
  for (int format = 0; format < kFormats; ++format) {
    store<Reuse::kNever>(to + format * n + i,
                         Vector<unsigned short, 1>{{static_cast<unsigned short>(codes[format])}});
  }
}

// Two codes of every element and the one after it. Elements are products, as where codes are made:
// `one` is 1, and a GPU's NaN has no sign then.
__global__ void encode_all(unsigned short* ours, unsigned short* arithmetic, unsigned short* theirs,
                           const float* x, float one, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const float a = load<Reuse::kNever, 1>(x + i)[0] * one;
  const float b = load<Reuse::kNever, 1>(x + (i + 1) % n)[0] * one;
  put(ours, {E4m3::encode(a, b), E5m2::encode(a, b), E2m1::encode(a, b)}, i, n);
  put(arithmetic, {E4m3::encode_in_software(a, b), E5m2::encode_in_software(a, b),
                   E2m1::encode_in_software(a, b)}, i, n);
  const float2 both{a, b};
  put(theirs, {__nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E4M3),
               __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E5M2),
               __nv_cvt_float2_to_fp4x2(both, __NV_E2M1, cudaRoundNearest)}, i, n);
}

// Numbers of every pair of codes, of which half-byte ones have the lower byte; then scales.
__global__ void decode_all(float* numbers, float* scales) {
  constexpr int kPairs = 1 << 16;
  const int pair = blockIdx.x * blockDim.x + threadIdx.x;
  float two[kFormats][2];
  E4m3::decode_two(pair, two[0][0], two[0][1]);
  E5m2::decode_two(pair, two[1][0], two[1][1]);
  E2m1::decode_two(pair & 0xff, two[2][0], two[2][1]);
  for (int place = 0; place < 2; ++place) {
    two[2][place] *= E2m1::kUnit;
    for (int format = 0; format < kFormats; ++format) {
      store<Reuse::kNever>(numbers + (format * kPairs + pair) * 2 + place,
                           Vector<float, 1>{{two[format][place]}});
    }
  }
  if (pair < 256) store<Reuse::kNever>(scales + pair, Vector<float, 1>{{E8m0::decode(pair)}});
}
