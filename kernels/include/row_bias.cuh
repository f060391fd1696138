// y = f(x + bias), one bias per column; backward also sums dx over the rows.
//
// 1. Elementwise, with the column as i % columns: a division and a load of the bias per vector.
// 2. A thread keeps its columns and walks down the rows, so that the bias stays in registers (in
//    L1 where rows begin anywhere: there a thread's columns move). A block is a tile of columns
//    times a share of the rows; tiles are next to one another, so that blocks that run together
//    read whole rows. Short rows lie beside one another in a block.
// 3. Backward adds up its columns in registers on the way: dy and x are read once. Blocks leave
//    partial sums, which column_sums (column.cuh) adds in a fixed order.
//
// An operation f brings apply(pre) and gradient(dy, pre), pre = x + bias. kLinear: the gradient is
// dy itself, which then is neither computed nor written, and x and the bias are not read.
#pragma once

#include "column.cuh"
#include "row.cuh"

// The columns and the rows of one block.
template <typename T, class Plan>
struct Share {
  static constexpr int kWidth = elements_in<T, Plan::kBytes>();
  // One vector less where a tile may begin inside one.
  static constexpr int kTile = (Plan::kLanes * Plan::kVectors - Plan::kRagged) * kWidth;
  using Span = Row<T, kWidth, Plan::kRagged>;
  using Values = Packed<T, kWidth>[Plan::kVectors];

  long long rows;
  int columns;
  int shift, bias_shift;  // elements that matrices, and the bias, begin past a vector
  int tiles = (columns + kTile - 1) / kTile;
  int begin = blockIdx.x % tiles * kTile;
  int length = min(columns - begin, kTile);
  int lane = threadIdx.x % Plan::kLanes;
  int group = threadIdx.x / Plan::kLanes;
  int index = blockIdx.x / tiles;

  __device__ long long first() const { return static_cast<long long>(index) * Plan::kGroups; }
  __device__ long long step() const {
    return static_cast<long long>(gridDim.x / tiles) * Plan::kGroups;
  }
  __device__ int vector(int k) const { return k * Plan::kLanes + lane; }
  __device__ Span row(long long first) const {
    const long long n = first + group;
    return Span(n * columns + begin, n < rows ? length : 0, shift);
  }

  template <Reuse kReuse>
  __device__ void load(const Span& row, const T* x, Values& values) const {
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) values[k] = row.template load<kReuse>(x, vector(k));
  }

  __device__ Packed<T, kWidth> load_bias(const Span& row, const T* bias, int k) const {
    return row.load_parameter(bias + begin, bias_shift, vector(k));
  }

  // Rows that are cut alike have the same bias: it is kept. Elsewhere it is loaded where it is
  // used: all of it at once would spill.
  __device__ void keep_bias(const T* bias, Values& values) const {
    if constexpr (!Plan::kRagged) {
      const Span whole(0, length, 0);
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) values[k] = load_bias(whole, bias, k);
    }
  }
};

template <class Operation, typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    bias_forward(T* y, const T* x, const T* bias, long long rows, int columns, int shift,
                 int bias_shift) {
  using Block = Share<T, Plan>;
  const Block block{rows, columns, shift, bias_shift};
  typename Block::Values x_v, bias_v;
  block.keep_bias(bias, bias_v);
  for (long long first = block.first(); first < rows; first += block.step()) {
    const auto row = block.row(first);
    block.template load<Reuse::kNever>(row, x, x_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      if (Plan::kRagged) bias_v[k] = block.load_bias(row, bias, k);
      float out[Block::kWidth];
#pragma unroll
      for (int i = 0; i < Block::kWidth; ++i) out[i] = Operation::apply(x_v[k][i] + bias_v[k][i]);
      row.template store<kStores>(y, block.vector(k), Packed<T, Block::kWidth>::rounded(out));
    }
  }
}

// partials: [shares of the rows, columns].
template <class Operation, typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    bias_backward(T* dx, float* partials, const T* dy, const T* x, const T* bias, long long rows,
                  int columns, int shift, int bias_shift) {
  using Block = Share<T, Plan>;
  constexpr int kWidth = Block::kWidth;
  const Block block{rows, columns, shift, bias_shift};
  ColumnSums<Plan, kWidth> sums(dynamic_shared<float>());
  typename Block::Values dy_v, x_v, bias_v;
  if constexpr (!Operation::kLinear) block.keep_bias(bias, bias_v);
  for (long long first = block.first(); first < rows; first += block.step()) {
    const auto row = block.row(first);
    block.template load<Reuse::kNever>(row, dy, dy_v);
    if constexpr (!Operation::kLinear) block.template load<Reuse::kNever>(row, x, x_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const int v = block.vector(k);
      if constexpr (Plan::kRagged && !Operation::kLinear) {
        bias_v[k] = block.load_bias(row, bias, k);
      }
      float out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if constexpr (Operation::kLinear) {
          out[i] = dy_v[k][i];
        } else {
          out[i] = Operation::gradient(dy_v[k][i], x_v[k][i] + bias_v[k][i]);
        }
        sums.add(k, i, row.column(v) + i, row.columns, out[i]);
      }
      if constexpr (!Operation::kLinear) {
        row.template store<kStores>(dx, v, Packed<T, kWidth>::rounded(out));
      }
    }
    sums.end_of_row();
    if (Plan::kRagged && Plan::kLanes > kWarp) __syncthreads();  // the next row is cut elsewhere
  }
  sums.write(partials + static_cast<long long>(block.index) * columns + block.begin, block.length);
}
