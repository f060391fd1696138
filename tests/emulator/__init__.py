"""Runs the CUDA C++ of the package on the CPU: results, traffic and coalescing, no GPU."""
