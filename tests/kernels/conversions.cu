// Codes of floats by include/convert.cuh's arithmetic, beside those of the toolkit's own header.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "convert.cuh"

__global__ void convert(unsigned char* ours, unsigned char* theirs, const float* x, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const float value = load<Reuse::kNever, 1>(x + i)[0];
  const unsigned char mine[3] = {
      static_cast<unsigned char>(E4m3::encode(value, 0.0f)),
      static_cast<unsigned char>(E5m2::encode(0.0f, value) >> 8),
      static_cast<unsigned char>(E2m1::encode_one(value)),
  };
  const unsigned char other[3] = {
      __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3),
      __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2),
      __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest),
  };
  for (int format = 0; format < 3; ++format) {
    store<Reuse::kNever>(ours + format * n + i, Vector<unsigned char, 1>{{mine[format]}});
    store<Reuse::kNever>(theirs + format * n + i, Vector<unsigned char, 1>{{other[format]}});
  }
}
