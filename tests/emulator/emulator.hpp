// CUDA's built-ins for g++: a kernel's threads are fibres of one OS thread.
//
// Blocks run one after another (those of a cluster together) and threads until their next barrier,
// both in seeded random order, so a result that depends on an order nobody promised changes with the
// seed. Shared memory is filled with NaN before every block. Loads and stores come through
// memory.cuh, are checked against the tensors of the launch, and counted. Another block's shared
// memory can be read while that block runs; one that waits for no one may have ended by then.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __launch_bounds__
#undef __shared__
#undef __constant__
#define __global__ [[maybe_unused]] static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __constant__ static const
#define __shared__ static_assert(false, "declare shared memory through shared.cuh");

#include "fibre.hpp"

namespace emulator {

struct Index {
  unsigned int x, y, z;
};

}  // namespace emulator

static emulator::Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulator {

// ---- what crosses to Python ---------------------------------------------------------------------

struct Traffic {  // per tensor
  int64_t loaded, stored;                // bytes of every access
  int64_t unique_loaded, unique_stored;  // bytes touched at least once
  int64_t block_loaded;                  // bytes touched at least once by a block, over blocks
  int64_t load_sectors, load_ideal;      // 32-byte sectors per warp access; the fewest that hold it
  int64_t store_sectors, store_ideal;
};

struct Buffer {
  unsigned char* begin;
  int64_t nbytes;
};

struct Launch {
  int64_t blocks, threads, shared_bytes, cluster;
  uint64_t seed;
  const int64_t* only_blocks;  // null: all
  int64_t only_blocks_length;
  const Buffer* buffers;
  int64_t buffers_length;
  int64_t count;  // 0: check bounds only
  Traffic* traffic;
  char* error;  // 512 bytes
};

// ---- one launch ---------------------------------------------------------------------------------

enum class State { kReady, kBarrier, kClusterBarrier, kCollective, kDone };

struct Block;

struct Lane {
  Fibre fibre;
  Index index;
  Block* block;
  int warp, lane;
  State state;
  uint32_t epoch;                  // collectives passed: accesses of a warp are matched within one
  std::vector<uint32_t> accesses;  // by site, in this epoch
};

struct Collective {
  uint32_t mask, arrived;
  int kind;
  uint64_t given[32], result[32];
};

struct Access {  // one instruction of a warp
  bool is_store;
  int buffer;
  std::vector<uint64_t> chunks;  // address, bytes
};

struct Warp {
  std::vector<Collective> collectives;
  std::unordered_map<uint64_t, Access> accesses;
};

struct Shadow {
  std::vector<uint8_t> touched;
  std::vector<uint32_t> block;
};

struct Block {
  int64_t index;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  int live, waiting;
  uint32_t stamp;
};

struct Machine {
  uint64_t number;  // of the launch, from 1
  const Launch* launch;
  void (*kernel)(void**);
  void** arguments;
  std::vector<Block> blocks;  // of the cluster that runs
  std::vector<Shadow> shadows;
  size_t static_shared;  // bytes of the arena that SHARED_ARRAYs took
  Fibre scheduler;
  Lane* current;
  int live, waiting;  // threads of the cluster, and those at its barrier
  uint32_t stamps;
  bool failed;
  uint64_t random;
};

inline Machine* machine = nullptr;

constexpr size_t kSharedLimit = 228 * 1024;

// bound: below 2^32.
inline uint64_t random_below(uint64_t bound) {
  uint64_t& s = machine->random;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return (s >> 32) * bound >> 32;
}

template <typename T>
void shuffle(std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random_below(i)]);
}

inline void yield() {
  switch_fibre(machine->current->fibre, machine->scheduler);
}

// Ends the launch: the first failure is reported, no fibre runs again.
[[noreturn]] inline void fail(const char* message) {
  if (!machine->failed) {
    std::snprintf(machine->launch->error, 512, "block %u thread %u: %s", blockIdx.x, threadIdx.x,
                  message);
    machine->failed = true;
  }
  for (;;) yield();
}

// ---- barriers, shuffles, votes ------------------------------------------------------------------

inline Block& this_block() { return *machine->current->block; }

inline void release(Block& block, State waiting) {
  for (Lane& lane : block.lanes) {
    if (lane.state == waiting) lane.state = State::kReady;
  }
}

inline void release_barrier() {
  Block& block = this_block();
  if (block.waiting == 0 || block.waiting < block.live) return;
  release(block, State::kBarrier);
  block.waiting = 0;
}

inline void release_cluster_barrier() {
  Machine& m = *machine;
  if (m.waiting == 0 || m.waiting < m.live) return;
  for (Block& block : m.blocks) release(block, State::kClusterBarrier);
  m.waiting = 0;
}

inline void next_epoch() {
  ++machine->current->epoch;
  machine->current->accesses.clear();
}

inline void block_barrier() {
  machine->current->state = State::kBarrier;
  ++this_block().waiting;
  release_barrier();
  yield();
  next_epoch();
}

inline void cluster_barrier() {
  machine->current->state = State::kClusterBarrier;
  ++machine->waiting;
  release_cluster_barrier();
  yield();
  next_epoch();
}

// Every lane of `mask` gives a value; each gets all of them.
inline const uint64_t* collect(uint32_t mask, uint64_t value, int kind) {
  Lane& self = *machine->current;
  Warp& warp = self.block->warps[self.warp];
  if (!(mask >> self.lane & 1)) fail("calls a warp collective whose mask leaves it out");
  size_t at = 0;
  while (at < warp.collectives.size() && warp.collectives[at].mask != mask) ++at;
  if (at == warp.collectives.size()) warp.collectives.push_back(Collective{mask, 0, 0, {}, {}});
  Collective* group = &warp.collectives[at];
  if (group->arrived && group->kind != kind) fail("meets another warp collective in its warp");
  group->kind = kind;
  group->given[self.lane] = value;
  group->arrived |= 1u << self.lane;
  if (group->arrived == mask) {
    std::memcpy(group->result, group->given, sizeof group->given);
    group->arrived = 0;
    const int base = self.warp * 32;
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      self.block->lanes[base + lane].state = State::kReady;
    }
  } else {
    self.state = State::kCollective;
  }
  yield();
  next_epoch();
  return self.block->warps[self.warp].collectives[at].result;
}

template <typename T>
T exchange(uint32_t mask, T value, int source, int kind) {
  static_assert(sizeof(T) <= 8, "up to 64 bits");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const uint64_t* all = collect(mask, bits, kind);
  if (!(mask >> source & 1)) fail("shuffles from a lane outside the mask");
  std::memcpy(&value, &all[source], sizeof value);
  return value;
}

// ---- shared memory ------------------------------------------------------------------------------

inline void* dynamic_shared() { return this_block().shared.data(); }

// Statics follow the dynamic bytes; an offset belongs to a declaration for the whole launch.
template <typename Array, typename Declaration>
Array& shared_array(Declaration) {
  static uint64_t launch = 0;
  static size_t offset = 0;
  Machine& m = *machine;
  if (launch != m.number) {
    launch = m.number;
    offset = (m.launch->shared_bytes + m.static_shared + 31) / 32 * 32;
    m.static_shared = offset + sizeof(Array) - m.launch->shared_bytes;
    if (offset + sizeof(Array) > kSharedLimit) fail("takes more shared memory than there is");
  }
  return *reinterpret_cast<Array*>(this_block().shared.data() + offset);
}

// What block `rank` of this cluster has where `own` is in this one.
template <typename T>
T load_of_block(const T* own, int rank) {
  const auto* const byte = reinterpret_cast<const unsigned char*>(own);
  const std::vector<unsigned char>& shared = this_block().shared;
  if (byte < shared.data() || byte + sizeof(T) > shared.data() + shared.size()) {
    fail("asks for another block's copy of what is not in shared memory");
  }
  if (rank < 0 || rank >= machine->launch->cluster) fail("asks for a block outside its cluster");
  const Block& other = machine->blocks[rank];
  if (other.live == 0) fail("reads the shared memory of a block that has ended");
  return *reinterpret_cast<const T*>(other.shared.data() + (byte - shared.data()));
}

}  // namespace emulator

#include "counted.hpp"
#include "running.hpp"
#include "builtins.hpp"
