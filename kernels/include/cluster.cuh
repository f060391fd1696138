// Blocks that run together, on neighbouring multiprocessors (sm_90 and later): their barrier, and
// what each may read of another's shared memory. A block must not end while another may read it.
#pragma once

#include "reduce.cuh"

// Every thread of every block of the cluster; what they wrote before it, all of them see after it.
__device__ inline void cluster_sync() {
#ifdef MEMBOUND_EMULATOR
  ::emulator::cluster_barrier();
#else
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}

// What block `rank` of this cluster has where `own` is in our shared memory.
__device__ inline float load_of_block(const float* own, int rank) {
#ifdef MEMBOUND_EMULATOR
  return ::emulator::load_of_block(own, rank);
#else
  unsigned int there;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(static_cast<unsigned int>(__cvta_generic_to_shared(own))), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
#endif
}

// Reductions over the threads of a whole cluster, the same bits in each of them: every warp combines
// the warps of all blocks in the same order. Two sets of slots in turn, so that one barrier per
// reduction is enough; the last one before a block ends needs another behind it.
template <int kCluster, int kThreads, int kMost = 1>
class ClusterReduction {
  static constexpr int kWarps = kThreads / kWarp;
  static_assert(kCluster * kWarps % kWarp == 0, "a warp reads as many values in every lane");

 public:
  static constexpr int kFloats = 2 * kMost * kWarps;  // of shared memory

  __device__ explicit ClusterReduction(float* slots) : slots_(slots) {}

  template <class Reduction, int kValues>
  __device__ void all(float (&values)[kValues]) {
    static_assert(kValues <= kMost, "there are slots for kMost values");
    float* const now = slots_ + turn_ * kMost * kWarps;
    turn_ ^= 1;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = reduce_lanes<Reduction>(values[i]);
      if (lane == 0) now[i * kWarps + warp] = values[i];
    }
    cluster_sync();
    constexpr int kEach = kCluster * kWarps / kWarp;
    float given[kValues][kEach];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int at = k * kWarp + lane;
        given[i][k] = load_of_block(now + i * kWarps + at % kWarps, at / kWarps);
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = given[i][0];
#pragma unroll
      for (int k = 1; k < kEach; ++k) values[i] = Reduction::apply(values[i], given[i][k]);
      values[i] = reduce_lanes<Reduction>(values[i]);
    }
  }

  template <class Reduction>
  __device__ float of(float value) {
    float values[1] = {value};
    all<Reduction>(values);
    return values[0];
  }

 private:
  float* slots_;
  int turn_ = 0;
};
