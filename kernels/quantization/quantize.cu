// Quantization. The kernels that need no row are in include/quantize.cuh, with their ladder; those
// whose scale is a row's are launched here, and work as include/quantize_row.cuh says.
#include "quantize.cuh"
#include "quantize_row.cuh"

template <typename T, class Plan, Reuse kStores, class Format>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    quantize_rows(const T* x, unsigned char* q, float* scales, long long rows, int columns,
                  int shift, float largest, float smallest) {
  rows_in_registers<Plan>(QuantizeRows<T, Plan, kStores, Format>{
      {x, rows, columns, shift}, q, scales, largest, smallest});
}

template <typename T, class Plan, Reuse kStores, class Format, bool kStaged>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    quantize_rows_steps(const T* x, unsigned char* q, float* scales, long long rows, int columns,
                        int shift, float largest, float smallest) {
  rows_in_steps<Plan, kStaged>(QuantizeRows<T, Plan, kStores, Format>{
      {x, rows, columns, shift}, q, scales, largest, smallest});
}
