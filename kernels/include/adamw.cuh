// The arithmetic of AdamW, line by line (training/adamw.py states it).
#pragma once

#include "math.cuh"

// Field by field what `numbers` of training/adamw.py gives.
struct Numbers {
  float decay;  // 1 - rate * weight_decay
  float beta1, rest1, beta2, rest2;
  float rate;        // over the bias correction of the first moment
  float correction;  // of the root of the second moment
  float eps;

  __device__ float decayed(float p) const { return decay * p; }
  __device__ float first(float g, float m) const { return beta1 * m + rest1 * g; }
  __device__ float second(float g, float v) const { return beta2 * v + rest2 * (g * g); }
  __device__ float stepped(float p, float m, float v) const {
    return p - rate * m * reciprocal_fast(sqrt_fast(v) * correction + eps);
  }
};
