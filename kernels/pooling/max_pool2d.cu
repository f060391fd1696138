// Max-pooling of NCHW planes. The rule and the schedules are in include/pool.cuh and pool_tile.cuh,
// the choice between them in max_pool2d_cuda.py.
//
// Forward
// 1. A thread per output, its window read from global memory: 3x3 stride 2 asks for every element
//    2.25 times, by 2-byte loads two elements apart.
// 2. Tiles: a block copies its planes to shared memory by aligned vectors, once, and pools there;
//    consecutive lanes take consecutive windows, so shared memory has no conflicts at stride 2.
// 3. Strips: nine reads and compares per output are more instructions than HBM leaves time for. A
//    thread pools vectors of a row first, then rows: what overlaps is read and compared once.
// 4. The next output row is loaded while this one is compared.
// The place is one byte, row * kernel + column in its window: 3 bytes written per output where
// 8-byte indices are 10.
//
// Backward
// 1. Scatter with atomics into a dx that was set to zero: two passes, and an order that changes.
// 2. Gather: an element of dx adds the windows that point to it, at most (kernel / stride)^2 of
//    them, in order: one pass, the same bits every time.
#include "pool_tile.cuh"

template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_strips(const T* x, T* y, unsigned char* offset, long long planes, int height,
                              int width, int out_height, int out_width, int bands, int band_rows,
                              int lanes) {
  ForwardStrip<T, kBytes, kKernel, kStride, kStores, kThreads>::run(
      x, y, offset, {planes, height, width, out_height, out_width, bands, band_rows}, lanes);
}

template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_backward_strips(const T* dy, const unsigned char* offset, T* dx, long long planes,
                               int height, int width, int out_height, int out_width, int bands,
                               int band_rows, int lanes) {
  BackwardStrip<T, kBytes, kKernel, kStride, kStores, kThreads>::run(
      dy, offset, dx, {planes, height, width, out_height, out_width, bands, band_rows}, lanes);
}

template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_tiles(const T* x, T* y, unsigned char* offset, long long planes, int height,
                             int width, int out_height, int out_width, int bands, int band_rows,
                             int lanes, int padding, int together) {
  ForwardTile<T, kBytes, kKernel, kStride, kStaged, kStores, kThreads>::run(
      x, y, offset, {planes, height, width, out_height, out_width, bands, band_rows}, padding,
      together, lanes);
}

template <typename T, int kBytes, int kKernel, int kStride, Reuse kStores, int kThreads,
          bool kStaged>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_backward_tiles(const T* dy, const unsigned char* offset, T* dx, long long planes,
                              int height, int width, int out_height, int out_width, int bands,
                              int band_rows, int lanes, int padding, int together) {
  BackwardTile<T, kBytes, kKernel, kStride, kStaged, kStores, kThreads>::run(
      dy, offset, dx, {planes, height, width, out_height, out_width, bands, band_rows}, padding,
      together, lanes);
}
