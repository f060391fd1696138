// A launch: its clusters one after another, in an order that the seed decides.
#pragma once

namespace emulator {

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
  std::memset(block.shared.data(), 0xff, m.launch->shared_bytes + m.static_shared);
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

inline void make_block(Block& block, unsigned char* stacks) {
  const int threads = machine->launch->threads;
  block.shared.assign(kSharedLimit, 0xff);
  block.lanes.resize(threads);
  block.warps.resize((threads + 31) / 32);
  for (int t = 0; t < threads; ++t) {
    Lane& lane = block.lanes[t];
    lane.index = {static_cast<unsigned int>(t), 0, 0};
    lane.block = &block;
    lane.warp = t / 32;
    lane.lane = t % 32;
    give_stack(lane.fibre, stacks, t);
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
  static uint64_t launches = 0;
  Machine m{};
  machine = &m;
  m.number = ++launches;
  m.launch = &launch;
  m.kernel = kernel;
  m.arguments = arguments;
  m.random = launch.seed * 0x9e3779b97f4a7c15ull | 1;
  for (int i = 0; i < 8; ++i) random_below(1);
  m.blocks.resize(launch.cluster);
  unsigned char* stacks = stacks_of(launch.cluster * launch.threads);
  for (Block& block : m.blocks) {
    make_block(block, stacks);
    stacks += launch.threads * kStack;
  }
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
