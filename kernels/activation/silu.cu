// SiLU: elementwise.cuh has the ladder, activation.cuh the arithmetic.
#include "activation.cuh"
#include "elementwise.cuh"
