// The kernels, with their ladder, are in include/embedding.cuh.
#include "embedding.cuh"
