// Negative log-likelihood of rows of logarithms: what a loss does after log_softmax.
//
// 1. Forward: a thread a row, which reads its target and one logarithm. With label smoothing the
//    row's mean is wanted too: a block a row, in vectors.
// 2. Backward: a block a row writes one number everywhere, in vectors, and another at the target.
#include "row_sum.cuh"

constexpr long long kIgnored = -100;

inline __device__ float not_a_number() { return __int_as_float(0x7fc00000); }

// What a row whose target is no class has.
inline __device__ float without_class(long long target) {
  return target == kIgnored ? 0.0f : not_a_number();
}
inline __device__ bool is_class(long long target, long long columns) {
  return 0 <= target && target < columns;
}

template <typename T>
__global__ void nll_loss(const T* x, const long long* target, float* loss, long long rows,
                         long long columns) {
  const long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= rows) return;
  const long long own = load<Reuse::kNever, 1>(target + n)[0];
  const float value = is_class(own, columns)
                          ? -to_float(load<Reuse::kNever, 1>(x + n * columns + own)[0])
                          : without_class(own);
  store<Reuse::kSoon>(loss + n, Vector<float, 1>{{value}});
}

template <typename T, int kBytes, int kLoads, int kThreads>
__global__ void nll_loss_smoothed(const T* x, const long long* target, float* loss, long long rows,
                                  long long columns, float smoothing) {
  const T* const row = x + blockIdx.x * columns;
  const float sum = sum_run<Itself, kBytes, kLoads, kThreads>(row, columns);
  if (threadIdx.x > 0) return;
  const long long own = load<Reuse::kNever, 1>(target + blockIdx.x)[0];
  float value = without_class(own);
  if (is_class(own, columns)) {
    const float logarithm = to_float(load<Reuse::kSoon, 1>(row + own)[0]);
    value = -(1.0f - smoothing) * logarithm - smoothing * (sum / columns);
  }
  store<Reuse::kSoon>(loss + blockIdx.x, Vector<float, 1>{{value}});
}

template <typename T, int kBytes, Reuse kStores>
__global__ void nll_loss_backward(const float* dloss, const long long* target, T* dx,
                                  long long rows, long long columns, float smoothing) {
  constexpr int kWidth = elements_in<T, kBytes>();
  const long long own = load<Reuse::kSoon, 1>(target + blockIdx.x)[0];
  const float factor = -load<Reuse::kSoon, 1>(dloss + blockIdx.x)[0];
  const bool counts = is_class(own, columns);
  const float everywhere = counts ? factor * (smoothing / columns) : without_class(own);
  const auto value = [&](long long i) {
    return i == own && counts ? everywhere + factor * (1.0f - smoothing) : everywhere;
  };
  T* const row = dx + blockIdx.x * columns;
  const long long offset = reinterpret_cast<unsigned long long>(row) % kBytes / sizeof(T);
  const long long to_aligned = (kWidth - offset) % kWidth;
  const long long head = to_aligned < columns ? to_aligned : columns;
  const long long vectors = (columns - head) / kWidth;
  for (long long v = threadIdx.x; v < vectors; v += blockDim.x) {
    const long long first = head + v * kWidth;
    float values[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = value(first + i);
    store<kStores>(row + first, from_floats<T>(values));
  }
  const auto put = [&](long long i) {
    store<kStores>(row + i, Vector<T, 1>{{from_float<T>(value(i))}});
  };
  if (threadIdx.x < head) put(threadIdx.x);
  const long long tail = head + vectors * kWidth + threadIdx.x;
  if (tail < columns) put(tail);
}
