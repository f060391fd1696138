// Shared memory, declared in two spellings that the emulator can replace: its arena is filled with
// NaN before every block, so a read that no barrier orders after its write is seen.
#pragma once

#ifdef MEMBOUND_EMULATOR
// The lambda's type tells this declaration, in this instantiation, from every other.
#define SHARED_ARRAY(type, name, length) \
  auto& name = ::emulator::shared_array<type[length]>([] {})

template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(::emulator::dynamic_shared());
}
#else
#define SHARED_ARRAY(type, name, length) __shared__ type name[length]

// The bytes given at launch, aligned for the widest vector.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(32) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}
#endif
