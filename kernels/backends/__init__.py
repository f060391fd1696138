"""What each way of writing kernels needs: whether it can run, and how its sources are built."""
