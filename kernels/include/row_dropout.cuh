// Dropout of rows, alone or between a bias and a residual add, and its gradient.
//
//   forward    y = residual + (x + bias) * factor, or x * factor     factor = 0 or 1 / (1 - p)
//   backward   dx = dy * factor      dbias = sum over rows of dx
//
// 1. PyTorch's kernels draw in forward and keep a byte an element for backward: a third of what
//    bfloat16 moves in backward.
// 2. The generator is a function of the element's place (random.cuh), so backward draws again and
//    nothing is kept. It costs ten instructions an element, which wait for loads anyway.
// 3. Kept masks stand beside it, to see what replaying saves: a byte an element, or a bit.
// 4. The walk is that of row_bias.cuh: a thread keeps its columns and their bias, and sums them in
//    backward.
//
// What is dropped is multiplied by 0, as in PyTorch: NaN and infinity become NaN.
#pragma once

#include "random.cuh"
#include "row_bias.cuh"

enum class Mask { kReplayed, kBytes, kBits };

// Which elements of one vector are kept: drawn, stored and loaded.
template <Mask kMask, class Block, class Plan>
struct KeptVectors {
  static constexpr int kWidth = Block::kWidth;
  using Span = typename Block::Span;
  using Bytes = Row<unsigned char, kWidth, Plan::kRagged>;

  static __device__ long long element(const Span& row, int v) { return row.start + row.column(v); }

  static __device__ unsigned int draw(const Dropout& dropout, const Span& row, int v) {
    return dropout.kept<kWidth, !Plan::kRagged>(element(row, v));
  }

  template <Reuse kStores>
  static __device__ void store(unsigned char* mask, const Dropout& dropout, const Span& row, int v,
                               int shift, unsigned int kept) {
    if constexpr (kMask == Mask::kBytes) {
      Packed<unsigned char, kWidth> bytes = Packed<unsigned char, kWidth>::zeros();
#pragma unroll
      for (int i = 0; i < kWidth; ++i) bytes.words[i / 4] |= (kept >> i & 1u) << i % 4 * 8;
      Bytes(row.start, row.columns, shift).template store<kStores>(mask, v, bytes);
    } else if constexpr (kMask == Mask::kBits) {
      const long long first = element(row, v);
      if (!row.whole(v) || first % kPerStore) return;
      // Four elements are half of a byte: their thread has drawn its neighbour's, too.
      if constexpr (kWidth < kPerStore) kept = dropout.kept<kPerStore, true>(first);
      Vector<unsigned char, kPerStore / 8> bytes;
#pragma unroll
      for (int i = 0; i < kPerStore / 8; ++i) {
        bytes[i] = static_cast<unsigned char>(kept >> 8 * i);
      }
      ::store<kStores>(mask + first / 8, bytes);
    }
  }

  static __device__ unsigned int load(const unsigned char* mask, const Span& row, int v,
                                      int shift) {
    unsigned int kept = 0;
    if constexpr (kMask == Mask::kBytes) {
      const auto bytes =
          Bytes(row.start, row.columns, shift).template load<Reuse::kNever>(mask, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) kept |= (bytes.words[i / 4] >> i % 4 * 8 & 1u) << i;
    } else if (row.whole(v)) {
      const long long first = element(row, v);
      const auto bytes = ::load<Reuse::kNever, kPerStore / 8>(mask + first / 8);
#pragma unroll
      for (int i = 0; i < kPerStore / 8; ++i) {
        kept |= static_cast<unsigned int>(bytes[i]) << 8 * i;
      }
      kept >>= first % kPerStore;
    }
    return kept;
  }

 private:
  static constexpr int kPerStore = kWidth < 8 ? 8 : kWidth;  // whole bytes of bits
};

// Stands in for ColumnSums where nothing is summed.
struct NoSums {
  __device__ explicit NoSums(float*) {}
  __device__ void add(int, int, int, int, float) const {}
};
template <bool kSummed, class Plan, int kWidth>
struct SumsIf {
  using Type = ColumnSums<Plan, kWidth>;
};
template <class Plan, int kWidth>
struct SumsIf<false, Plan, kWidth> {
  using Type = NoSums;
};

__device__ inline float factor(unsigned int kept, int i) {
  return kept >> i & 1u ? Dropout::kScale : 0.0f;
}

// Pointers to bias and residual are null where kFused is false.
template <Mask kMask, bool kFused, typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    dropout_forward(T* y, unsigned char* mask, const T* x, const T* bias, const T* residual,
                    const long long* state, long long rows, int columns, int shift,
                    int bias_shift) {
  using Block = Share<T, Plan>;
  using Kept = KeptVectors<kMask, Block, Plan>;
  constexpr int kWidth = Block::kWidth;
  const Block block{rows, columns, shift, bias_shift};
  const Dropout dropout(state);
  typename Block::Values x_v, bias_v, residual_v;
  if constexpr (kFused) block.keep_bias(bias, bias_v);
  for (long long first = block.first(); first < rows; first += block.step()) {
    const auto row = block.row(first);
    block.template load<Reuse::kNever>(row, x, x_v);
    if constexpr (kFused) block.template load<Reuse::kNever>(row, residual, residual_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const int v = block.vector(k);
      const unsigned int kept = Kept::draw(dropout, row, v);
      if constexpr (kFused && Plan::kRagged) bias_v[k] = block.load_bias(row, bias, k);
      float out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if constexpr (kFused) {
          out[i] = residual_v[k][i] + (x_v[k][i] + bias_v[k][i]) * factor(kept, i);
        } else {
          out[i] = x_v[k][i] * factor(kept, i);
        }
      }
      row.template store<kStores>(y, v, Packed<T, kWidth>::rounded(out));
      Kept::template store<kStores>(mask, dropout, row, v, shift, kept);
    }
  }
}

// partials: [shares of the rows, columns], null where kFused is false. Of mask and state one is read.
template <Mask kMask, bool kFused, typename T, class Plan, Reuse kStores>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    dropout_backward(T* dx, float* partials, const T* dy, const unsigned char* mask,
                     const long long* state, long long rows, int columns, int shift) {
  using Block = Share<T, Plan>;
  using Kept = KeptVectors<kMask, Block, Plan>;
  constexpr int kWidth = Block::kWidth;
  const Block block{rows, columns, shift, 0};
  typename SumsIf<kFused, Plan, kWidth>::Type sums(dynamic_shared<float>());
  typename Block::Values dy_v;
  unsigned int kept[Plan::kVectors];
  for (long long first = block.first(); first < rows; first += block.step()) {
    const auto row = block.row(first);
    block.template load<Reuse::kNever>(row, dy, dy_v);
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const int v = block.vector(k);
      if constexpr (kMask == Mask::kReplayed) kept[k] = Kept::draw(Dropout(state), row, v);
      else kept[k] = Kept::load(mask, row, v, shift);
    }
#pragma unroll
    for (int k = 0; k < Plan::kVectors; ++k) {
      const int v = block.vector(k);
      float out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        out[i] = dy_v[k][i] * factor(kept[k], i);
        sums.add(k, i, row.column(v) + i, row.columns, out[i]);
      }
      row.template store<kStores>(dx, v, Packed<T, kWidth>::rounded(out));
    }
    if constexpr (kFused) {
      sums.end_of_row();
      if (Plan::kRagged && Plan::kLanes > kWarp) __syncthreads();  // the next row is cut elsewhere
    }
  }
  if constexpr (kFused) {
    sums.write(partials + static_cast<long long>(block.index) * columns + block.begin,
               block.length);
  }
}
