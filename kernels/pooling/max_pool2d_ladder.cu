// Max-pooling of NCHW planes forward, step by step; the last one is max_pool2d.cu's.
//
// naive      a thread per output, its window from global memory: 3x3 at stride 2 asks for every
//            element 2.25 times, which the caches answer
// shared     a block copies the rows of a band of windows to shared memory, once, and pools there
// vector     copied by 16 bytes at once, cut where memory is aligned
// The default pools vectors of a row in registers before it pools rows, and asks for the next rows
// meanwhile.
#include "memory.cuh"
#include "reduce.cuh"
#include "shared.cuh"

constexpr int kPoolThreads = 256;

struct Window {
  int height, width, out_h, out_w, kernel, stride, padding;
};

// The maximum of window (i, j); `at(row, column)` is an element of its plane.
template <typename T, class At>
__device__ void pool_window(T* y, unsigned char* offset, long long output, const Window& w, int i,
                            int j, At at) {
  const int top = i * w.stride - w.padding, left = j * w.stride - w.padding;
  const int above = max(0, -top), below = min(w.kernel, w.height - top);
  const int before = max(0, -left), behind = min(w.kernel, w.width - left);
  float best = Maximum::identity();
  int place = above * w.kernel + before;  // the first inside, where all are -inf
  for (int r = above; r < below; ++r) {
    for (int c = before; c < behind; ++c) {
      const float value = at(top + r, left + c);
      if (value > best || value != value) {  // the first of equals, and NaN
        best = value;
        place = r * w.kernel + c;
      }
    }
  }
  store<Reuse::kSoon>(y + output, Vector<T, 1>{{from_float<T>(best)}});
  store<Reuse::kSoon>(offset + output,
                      Vector<unsigned char, 1>{{static_cast<unsigned char>(place)}});
}

template <typename T>
__global__ void __launch_bounds__(kPoolThreads)
    max_pool2d_naive(const T* x, T* y, unsigned char* offset, long long outputs, int height,
                     int width, int out_h, int out_w, int kernel, int stride, int padding) {
  const long long output = static_cast<long long>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (output >= outputs) return;
  const long long plane = output / (out_h * out_w);
  const int pixel = static_cast<int>(output % (out_h * out_w));
  const T* const own = x + plane * height * width;
  pool_window(y, offset, output, {height, width, out_h, out_w, kernel, stride, padding},
              pixel / out_w, pixel % out_w, [&](int row, int column) {
                return to_float(load<Reuse::kSoon, 1>(own + row * width + column)[0]);
              });
}

// `length` elements of x to shared memory, `lead` elements behind its begin: as far as x is behind
// a whole vector.
template <int kWidth, typename T>
__device__ void copy_to_shared(T* tile, const T* x, int length, int lead) {
  for (int v = threadIdx.x; v * kWidth < length + lead; v += kPoolThreads) {
    const int first = v * kWidth - lead;
    if (first >= 0 && first + kWidth <= length) {
      *reinterpret_cast<Vector<T, kWidth>*>(tile + v * kWidth) =
          load<Reuse::kSoon, kWidth>(x + first);
      continue;
    }
    for (int i = max(first, 0); i < min(first + kWidth, length); ++i) {
      tile[i + lead] = load<Reuse::kSoon, 1>(x + i)[0];
    }
  }
}

// Launched with a block for each band of `some` rows of windows of each plane.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kPoolThreads)
    max_pool2d_shared(const T* x, T* y, unsigned char* offset, int bands, int some, int height,
                      int width, int out_h, int out_w, int kernel, int stride, int padding) {
  T* const tile = dynamic_shared<T>();
  const long long plane = blockIdx.x / bands;
  const int begin = static_cast<int>(blockIdx.x % bands) * some;
  const int end = min(begin + some, out_h);
  const int top = max(0, begin * stride - padding);
  const int bottom = min(height, (end - 1) * stride - padding + kernel);
  const T* const rows = x + (plane * height + top) * width;
  const auto address = reinterpret_cast<unsigned long long>(rows);
  const int lead = static_cast<int>(address / sizeof(T) % kWidth);
  copy_to_shared<kWidth>(tile, rows, (bottom - top) * width, lead);
  __syncthreads();
  const Window window{height, width, out_h, out_w, kernel, stride, padding};
  for (int p = threadIdx.x; p < (end - begin) * out_w; p += kPoolThreads) {
    const int i = begin + p / out_w, j = p % out_w;
    pool_window(y, offset, (plane * out_h + i) * out_w + j, window, i, j, [&](int row, int column) {
      return to_float(tile[lead + (row - top) * width + column]);
    });
  }
}
