// The CUDA functions that kernels here call, by their CUDA names.
#pragma once

enum EmulatedCollective { kShuffle, kVote, kSyncWarp };

inline void __syncthreads() { emulator::block_barrier(); }

inline void __syncwarp(unsigned int mask = 0xffffffffu) { emulator::collect(mask, 0, kSyncWarp); }

inline void __threadfence() {}

inline int emulated_segment(int width) { return emulator::machine->current->lane / width * width; }

template <typename T>
T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = 32) {
  const int lane = emulator::machine->current->lane;
  const int source = lane ^ lanes;
  const bool inside = source < emulated_segment(width) + width;
  return emulator::exchange(mask, value, inside ? source : lane, kShuffle);
}

template <typename T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
  const int lane = emulator::machine->current->lane;
  const int source = lane + static_cast<int>(delta);
  const bool inside = source < emulated_segment(width) + width;
  return emulator::exchange(mask, value, inside ? source : lane, kShuffle);
}

template <typename T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
  const int lane = emulator::machine->current->lane;
  const int source = lane - static_cast<int>(delta);
  const bool inside = source >= emulated_segment(width);
  return emulator::exchange(mask, value, inside ? source : lane, kShuffle);
}

template <typename T>
T __shfl_sync(unsigned int mask, T value, int source, int width = 32) {
  const int from = emulated_segment(width) + (source & (width - 1));
  return emulator::exchange(mask, value, from, kShuffle);
}

inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
  const uint64_t* all = emulator::collect(mask, predicate != 0, kVote);
  unsigned int ballot = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) ballot |= static_cast<unsigned int>(all[lane]) << lane;
  }
  return ballot;
}

inline int __any_sync(unsigned int mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

inline int __all_sync(unsigned int mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// Threads are fibres of one OS thread: a plain read-modify-write is atomic.
template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }

inline unsigned int __byte_perm(unsigned int low, unsigned int high, unsigned int which) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  unsigned int chosen = 0;
  for (int i = 0; i < 4; ++i) {
    chosen |= static_cast<unsigned int>(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return chosen;
}

inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
