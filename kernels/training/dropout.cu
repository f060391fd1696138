// dropout with its mask replayed, in bytes and in bits: row_dropout.cuh has the ladder.
#include "row_dropout.cuh"
