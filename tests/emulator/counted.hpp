// Global memory: every access is checked against the tensors of the launch, and counted.
#pragma once

namespace emulator {

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

}  // namespace emulator
