// Philox 4x32-10, a generator without a state: ten rounds make four words of a counter and a key.
// Its reference is kernels/philox.py, which names the source and whose vectors the tests hold.
//
// Dropout takes 16 bits a draw, eight draws a counter: half of the arithmetic of 32 bits, of which a
// matrix of 16-bit elements leaves no more time than that. Draw i of a matrix is half i % 8 of the
// words of counter i / 8, so that backward draws again what forward drew.
#pragma once

#include "memory.cuh"

struct PhiloxWords {
  unsigned int words[4];
};

__device__ inline PhiloxWords philox(PhiloxWords c, unsigned long long key) {
  unsigned int k0 = static_cast<unsigned int>(key), k1 = static_cast<unsigned int>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xd2511f53ull * c.words[0];
    const unsigned long long b = 0xcd9e8d57ull * c.words[2];
    c = {{static_cast<unsigned int>(b >> 32) ^ c.words[1] ^ k0, static_cast<unsigned int>(b),
          static_cast<unsigned int>(a >> 32) ^ c.words[3] ^ k1, static_cast<unsigned int>(a)}};
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

// What dropout draws: 6554 of 65536 are dropped, and what is kept is scaled by 65536 / 58982.
class Dropout {
 public:
  static constexpr unsigned int kDropped = 6554;
  static constexpr float kScale = 65536.0f / (65536 - kDropped);
  static constexpr int kGroup = 8;

  // state: seed and offset.
  __device__ explicit Dropout(const long long* state)
      : seed_(load<Reuse::kSoon, 1>(state)[0]), offset_(load<Reuse::kSoon, 1>(state + 1)[0]) {}

  // Bit i is set where element first + i is kept. Where kAligned, `first` is a multiple of N.
  template <int N, bool kAligned>
  __device__ unsigned int kept(long long first) const {
    const long long group = first >> 3;
    const int at = static_cast<int>(first) & 7;
    unsigned int bits = 0;
    if constexpr (N >= kGroup) {
#pragma unroll
      for (int i = 0; i < N / kGroup; ++i) bits |= kept_of(group + i) << i * kGroup;
      if (!kAligned && at) bits = bits >> at | kept_of(group + N / kGroup) << (N - at);
      return bits & static_cast<unsigned int>((1ull << N) - 1);
    }
    bits = kept_of(group) >> at;
    if (!kAligned && at + N > kGroup) bits |= kept_of(group + 1) << (kGroup - at);
    return bits & ((1u << N) - 1);
  }

 private:
  // One bit for each of eight elements. A group before the matrix, or behind it, is never used.
  __device__ unsigned int kept_of(long long group) const {
    const unsigned long long upper = offset_, lower = group;
    const PhiloxWords drawn =
        philox({{static_cast<unsigned int>(lower), static_cast<unsigned int>(lower >> 32),
                 static_cast<unsigned int>(upper), static_cast<unsigned int>(upper >> 32)}},
               seed_);
    unsigned int bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bits |= static_cast<unsigned int>((drawn.words[i] & 0xffffu) >= kDropped) << 2 * i;
      bits |= static_cast<unsigned int>(drawn.words[i] >> 16 >= kDropped) << (2 * i + 1);
    }
    return bits;
  }

  unsigned long long seed_;
  unsigned long long offset_;
};
