// Activations of one input: elementwise.cuh has the ladder, activation.cuh the arithmetic and what
// it costs.
#include "activation.cuh"
#include "elementwise.cuh"
