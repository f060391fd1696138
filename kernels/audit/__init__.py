"""CUDA C++ as machine code, judged without a GPU."""
