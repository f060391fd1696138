// Max-pooling of NCHW planes. The rules are in include/pool_max.cuh and pool_rules.cuh, the schedules
// in pool.cuh and pool_tile.cuh, the choice between them in backends/cuda_pool.py.
//
// Forward
// 1. A thread per output, its window read from global memory: 3x3 stride 2 asks for every element
//    2.25 times, by 2-byte loads two elements apart.
// 2. Tiles: a block copies its planes to shared memory by aligned vectors, once, and pools there;
//    consecutive lanes take consecutive windows, so shared memory has no conflicts at stride 2.
// 3. Strips: nine reads and compares per output are more instructions than HBM leaves time for. A
//    thread pools vectors of a row first, then rows: what overlaps is read and compared once.
// 4. The next output row is loaded while this one is compared.
// 5. Two windows of 16 bits are compared at once; in tiles a thread walks down its column, so that
//    there, too, a row that two windows share is read and compared once.
// The place is one byte, row * kernel + column in its window: 3 bytes written per output where
// 8-byte indices are 10.
//
// Backward
// 1. Scatter with atomics into a dx that was set to zero: two passes, and an order that changes.
// 2. Gather: an element of dx adds the windows that point to it, at most (kernel / stride)^2 of
//    them, in order: one pass, the same bits every time.
// 3. In tiles a thread has a cell of stride x stride elements, whose places in windows are constants;
//    cells are gathered in shared memory and written as one aligned run.
#include "pool_tile.cuh"
