// Rows that no block's shared memory holds, kept by a cluster (sm_90 and later): its blocks are as
// one, whose thread t of block b is lane b * kThreads + t of the row. A part of the row waits in the
// shared memory of each; only what a warp has gathered crosses to the others (cluster.cuh). The row
// is read once.
#pragma once

#include "cluster.cuh"
#include "row_map.cuh"

// Body as in row_map.cuh. The grid is of whole clusters of Plan::kCluster blocks.
template <class Plan, class Body>
__device__ void rows_in_cluster(const Body& body) {
  using Kept = typename Body::Kept;
  using Reduction = ClusterReduction<Plan::kCluster, Plan::kThreads, 2>;
  SHARED_ARRAY(float, slots, Reduction::kFloats);
  Reduction reduction(slots);
  Kept* const staged = dynamic_shared<Kept>();
  constexpr int kLanes = Plan::kCluster * Plan::kThreads;
  const int lane = blockIdx.x % Plan::kCluster * Plan::kThreads + threadIdx.x;

  for (long long n = blockIdx.x / Plan::kCluster; n < body.rows; n += gridDim.x / Plan::kCluster) {
    const auto cut = body.cut(n);
    const auto early = body.early(n);
    auto state = begin(body, early);
    Kept* waiting = staged + threadIdx.x;
    for (int base = lane; base < cut.read.vectors(); base += kLanes * Plan::kVectors) {
      typename Body::Loaded loaded[Plan::kVectors];
      Kept values[Plan::kVectors];
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        loaded[k] = body.template load<Reuse::kNever>(cut, base + k * kLanes);
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = base + k * kLanes;
        values[k] = keep(body, cut, v, loaded[k]);
        if (v < cut.read.vectors()) waiting[k * Plan::kThreads] = values[k];
      }
      body.add(state, cut, base, kLanes, values);
      waiting += Plan::kThreads * Plan::kVectors;
    }
    const auto result = body.reduce(state, early, reduction);
    waiting = staged + threadIdx.x;
    for (int base = lane; base < cut.written.vectors(); base += kLanes * Plan::kVectors) {
      Kept values[Plan::kVectors];
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        const int v = base + k * kLanes;
        if (v < cut.read.vectors()) {
          values[k] = waiting[k * Plan::kThreads];
        } else {  // what lies outside of the row is not loaded
          values[k] = again(body, cut, v);
        }
      }
#pragma unroll
      for (int k = 0; k < Plan::kVectors; ++k) {
        body.write(cut, base + k * kLanes, values[k], result);
      }
      waiting += Plan::kThreads * Plan::kVectors;
    }
    if (lane == 0) body.finish(n, result);
  }
  cluster_sync();  // others may still be reading our slots
}
