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
  const Launch* launch;
  void (*kernel)(void**);
  void** arguments;
  std::vector<Block> blocks;  // of the cluster that runs
  std::vector<Shadow> shadows;
  size_t static_shared;  // bytes of the arena that SHARED_ARRAYs took
  std::unordered_map<const void*, size_t> shared_offsets;
  Fibre scheduler;
  Lane* current;
  int live, waiting;  // threads of the cluster, and those at its barrier
  uint32_t stamps;
  bool failed;
  uint64_t random;
};

inline Machine* machine = nullptr;

constexpr size_t kSharedLimit = 228 * 1024;
constexpr size_t kStack = 128 * 1024;

inline uint64_t random_below(uint64_t bound) {
  uint64_t& s = machine->random;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s % bound;
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
  static const char declaration = 0;
  Machine& m = *machine;
  auto [at, is_new] = m.shared_offsets.try_emplace(&declaration, 0);
  if (is_new) {
    at->second = (m.launch->shared_bytes + m.static_shared + 31) / 32 * 32;
    m.static_shared = at->second + sizeof(Array) - m.launch->shared_bytes;
    if (at->second + sizeof(Array) > kSharedLimit) fail("takes more shared memory than there is");
  }
  return *reinterpret_cast<Array*>(this_block().shared.data() + at->second);
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

// ---- global memory ------------------------------------------------------------------------------

inline int next_site = 0;
template <typename V, bool kStore>
inline const int site = next_site++;

inline int buffer_of(const void* p, size_t bytes, bool is_store) {
  const Launch& launch = *machine->launch;
  const auto address = reinterpret_cast<uintptr_t>(p);
  char message[200];
  if (address % bytes) {
    std::snprintf(message, sizeof message, "misaligned %s of %zu bytes",
                  is_store ? "store" : "load", bytes);
    fail(message);
  }
  for (int b = 0; b < launch.buffers_length; ++b) {
    const auto begin = reinterpret_cast<uintptr_t>(launch.buffers[b].begin);
    if (address >= begin && address + bytes <= begin + launch.buffers[b].nbytes) return b;
  }
  int nearest = -1;
  int64_t distance = INT64_MAX;
  for (int b = 0; b < launch.buffers_length; ++b) {
    const int64_t offset = address - reinterpret_cast<uintptr_t>(launch.buffers[b].begin);
    const int64_t beyond = offset < 0 ? -offset : offset - launch.buffers[b].nbytes;
    if (beyond < distance) distance = beyond, nearest = b;
  }
  std::snprintf(message, sizeof message, "%s of %zu bytes at byte %lld of tensor %d, which has %lld",
                is_store ? "store" : "load", bytes,
                nearest < 0 ? 0LL
                            : static_cast<long long>(
                                  address -
                                  reinterpret_cast<uintptr_t>(launch.buffers[nearest].begin)),
                nearest,
                nearest < 0 ? 0LL : static_cast<long long>(launch.buffers[nearest].nbytes));
  fail(message);
}

inline void count(const void* p, size_t bytes, bool is_store, int site) {
#ifndef EMULATOR_UNCHECKED
  Machine& m = *machine;
  const int b = buffer_of(p, bytes, is_store);
  if (!m.launch->count) return;
  Traffic& traffic = m.launch->traffic[b];
  Shadow& shadow = m.shadows[b];
  const int64_t offset = static_cast<const unsigned char*>(p) - m.launch->buffers[b].begin;
  const uint8_t bit = is_store ? 2 : 1;
  int64_t fresh = 0;
  for (size_t i = 0; i < bytes; ++i) {
    uint8_t& touched = shadow.touched[offset + i];
    fresh += !(touched & bit);
    touched |= bit;
    if (!is_store && shadow.block[offset + i] != this_block().stamp) {
      shadow.block[offset + i] = this_block().stamp;
      ++traffic.block_loaded;
    }
  }
  (is_store ? traffic.stored : traffic.loaded) += bytes;
  (is_store ? traffic.unique_stored : traffic.unique_loaded) += fresh;

  Lane& lane = *m.current;
  if (lane.accesses.size() <= static_cast<size_t>(site)) lane.accesses.resize(site + 1);
  const uint64_t nth = lane.accesses[site]++;
  const uint64_t key = (static_cast<uint64_t>(lane.epoch) << 40 | nth << 12 | site) * 64 + b;
  Access& access = lane.block->warps[lane.warp].accesses[key];
  access.is_store = is_store;
  access.buffer = b;
  access.chunks.push_back(reinterpret_cast<uintptr_t>(p));
  access.chunks.push_back(bytes);
#endif
}

template <typename V, typename T>
V load(const T* p) {
  count(p, sizeof(V), false, site<V, false>);
  return *reinterpret_cast<const V*>(p);
}

template <typename V, typename T>
void store(T* p, const V& value) {
  count(p, sizeof(V), true, site<V, true>);
  *reinterpret_cast<V*>(p) = value;
}

// Sectors a warp access touched, against the fewest that could hold its distinct bytes.
inline void count_sectors(Block& block) {
  std::unordered_map<uint64_t, uint32_t> bytes_of;
  for (Warp& warp : block.warps) {
    for (auto& [key, access] : warp.accesses) {
      bytes_of.clear();
      int64_t distinct = 0;
      for (size_t i = 0; i < access.chunks.size(); i += 2) {
        for (uint64_t byte = access.chunks[i]; byte < access.chunks[i] + access.chunks[i + 1];
             ++byte) {
          uint32_t& seen = bytes_of[byte / 32];
          distinct += !(seen >> byte % 32 & 1);
          seen |= 1u << byte % 32;
        }
      }
      Traffic& traffic = machine->launch->traffic[access.buffer];
      (access.is_store ? traffic.store_sectors : traffic.load_sectors) += bytes_of.size();
      (access.is_store ? traffic.store_ideal : traffic.load_ideal) += (distinct + 31) / 32;
    }
    warp.accesses.clear();
  }
}

// ---- running ------------------------------------------------------------------------------------

// Apart, so that nothing of it is on the stack for a sanitizer to guard when the fibre starts anew.
[[gnu::noinline]] inline void run_thread() {
  Machine& m = *machine;
  m.kernel(m.arguments);
  m.current->state = State::kDone;
  --this_block().live;
  --m.live;
  release_barrier();
  release_cluster_barrier();
}

inline void enter() {
  run_thread();
  for (;;) yield();
}

inline void begin_block(Block& block, int64_t index, std::vector<Lane*>& order) {
  Machine& m = *machine;
  block.index = index;
  std::memset(block.shared.data(), 0xff, block.shared.size());
  block.stamp = ++m.stamps;
  block.live = m.launch->threads;
  block.waiting = 0;
  for (Warp& warp : block.warps) warp.collectives.clear();
  for (Lane& lane : block.lanes) {
    start_fibre(lane.fibre, enter);
    lane.state = State::kReady;
    lane.epoch = 0;
    lane.accesses.clear();
    order.push_back(&lane);
  }
}

// The blocks of one cluster, which is one block where there are none.
inline void run_cluster(int64_t cluster) {
  Machine& m = *machine;
  const Launch& launch = *m.launch;
  std::vector<Lane*> order;
  for (int64_t rank = 0; rank < launch.cluster; ++rank) {
    begin_block(m.blocks[rank], cluster * launch.cluster + rank, order);
  }
  m.live = order.size();
  m.waiting = 0;
  while (m.live > 0) {
    shuffle(order);
    bool progress = false;
    for (Lane* lane : order) {
      if (lane->state != State::kReady) continue;
      progress = true;
      m.current = lane;
      threadIdx = lane->index;
      blockIdx = {static_cast<unsigned int>(lane->block->index), 0, 0};
      switch_fibre(m.scheduler, lane->fibre);
      if (m.failed) return;
    }
    if (!progress) {
      std::snprintf(launch.error, 512, "block %lld: %d threads wait for threads that never come",
                    static_cast<long long>(m.blocks[0].index), m.live);
      m.failed = true;
      return;
    }
  }
  for (Block& block : m.blocks) count_sectors(block);
}

inline void make_block(Block& block) {
  const int threads = machine->launch->threads;
  block.shared.resize(kSharedLimit);
  block.lanes.resize(threads);
  block.warps.resize((threads + 31) / 32);
  for (int t = 0; t < threads; ++t) {
    Lane& lane = block.lanes[t];
    lane.index = {static_cast<unsigned int>(t), 0, 0};
    lane.block = &block;
    lane.warp = t / 32;
    lane.lane = t % 32;
    allocate_fibre(lane.fibre, kStack);
  }
}

// The clusters that hold the blocks asked for, each once.
inline std::vector<int64_t> clusters_of(const Launch& launch) {
  std::vector<int64_t> clusters;
  if (!launch.only_blocks) {
    for (int64_t c = 0; c < launch.blocks / launch.cluster; ++c) clusters.push_back(c);
    return clusters;
  }
  for (int64_t i = 0; i < launch.only_blocks_length; ++i) {
    clusters.push_back(launch.only_blocks[i] / launch.cluster);
  }
  clusters.erase(std::unique(clusters.begin(), clusters.end()), clusters.end());
  return clusters;
}

inline int run(const Launch& launch, void (*kernel)(void**), void** arguments) {
  Machine m{};
  machine = &m;
  m.launch = &launch;
  m.kernel = kernel;
  m.arguments = arguments;
  m.random = launch.seed * 0x9e3779b97f4a7c15ull | 1;
  for (int i = 0; i < 8; ++i) random_below(1);
  m.blocks.resize(launch.cluster);
  for (Block& block : m.blocks) make_block(block);
  if (launch.count) {
    for (int b = 0; b < launch.buffers_length; ++b) {
      m.shadows.push_back({std::vector<uint8_t>(launch.buffers[b].nbytes),
                           std::vector<uint32_t>(launch.buffers[b].nbytes)});
    }
  }
  blockDim = {static_cast<unsigned int>(launch.threads), 1, 1};
  gridDim = {static_cast<unsigned int>(launch.blocks), 1, 1};
  std::vector<int64_t> clusters = clusters_of(launch);
  shuffle(clusters);
  for (int64_t cluster : clusters) {
    run_cluster(cluster);
    if (m.failed) break;
  }
  for (Block& block : m.blocks) {
    for (Lane& lane : block.lanes) free_fibre(lane.fibre, kStack);
  }
  machine = nullptr;
  return m.failed;
}

template <typename... A, size_t... kIndex>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<kIndex...>) {
  kernel(*static_cast<std::remove_const_t<A>*>(arguments[kIndex])...);
}

template <typename... A>
void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

template <typename... A>
constexpr int arity(void (*)(A...)) {
  return sizeof...(A);
}

}  // namespace emulator

#include "builtins.hpp"
