// Conversions: elementwise.cuh has the ladder.
//
// The wider type fills an access; the narrower one moves as many elements in half of it, which is
// still whole sectors. Filling both would take two loads of a thread side by side, each of which
// touches only half of its sectors (or accesses of 32 bytes, from sm_100 on, which it does there).
#include "elementwise.cuh"

struct Cast {
  static __device__ float apply(float x) { return x; }
};
