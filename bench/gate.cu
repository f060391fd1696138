// What the GPU's timer launches beside the kernel under test.

// Holds a stream until the host opens the gate, so that start, launch and stop are all enqueued
// before the first of them runs and the host's launch cost stays outside the interval. A gate that
// the host never opens (something behind it synchronised) lets go by itself and says so: that
// sample is void. One thread; `opened` and `timed_out` are pinned host memory.
extern "C" __global__ void gate(const volatile int* opened, volatile int* timed_out,
                                long long limit_cycles) {
  const long long start = clock64();
  while (*opened == 0) {
    if (clock64() - start > limit_cycles) {
      *timed_out = 1;
      return;
    }
  }
}

// Fills the last-level cache with other, clean lines: ordinary loads (a streaming load would not
// allocate), every value summed so that none is optimised away. Written lines would have their
// write-back land in the interval that follows.
extern "C" __global__ void evict(const float4* lines, long long count, float* sums) {
  float sum = 0.0f;
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const float4 line = lines[i];
    sum += line.x + line.y + line.z + line.w;
  }
  if (sum == -1.0f) sums[0] = sum;  // never: the lines hold ones
}

// Cycles and nanoseconds at this point of the stream, as multiprocessor 0 sees them: the change of
// one over the change of the other is its clock. One block per multiprocessor; cycle counters of
// different multiprocessors are not comparable, so only one of them may write.
extern "C" __global__ void stamp(long long* cycles_and_nanoseconds) {
  unsigned int multiprocessor;
  long long nanoseconds;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  if (multiprocessor == 0 && threadIdx.x == 0) {
    cycles_and_nanoseconds[0] = clock64();
    cycles_and_nanoseconds[1] = nanoseconds;
  }
}
