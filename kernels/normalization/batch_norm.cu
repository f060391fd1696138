// Batch normalization: channel.cuh has the arithmetic and the ladder, channel_first.cuh NCHW and
// channel_last.cuh NHWC.
#include "channel_first.cuh"
#include "channel_last.cuh"
