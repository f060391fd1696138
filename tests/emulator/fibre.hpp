// A fibre: a stack and where it stopped. Switched by hand on x86-64, by ucontext elsewhere.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace emulator {

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Fibre {
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
  size_t stack_bytes = 0;
};

// Saves what a callee must keep on the stack that is left, restores it from the one entered. Ends
// with a jump: processors predict a return by the call before it, which was another fibre's.
asm(R"(
.text
.local emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
)");
extern "C" void emulator_switch(void** save, void* enter);

inline void switch_fibre(Fibre& from, Fibre& to) {
  emulator_switch(&from.stack_pointer, to.stack_pointer);
}

inline void start_fibre(Fibre& fibre, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(fibre.stack + fibre.stack_bytes);
  *--top = nullptr;  // keeps the entry's stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fibre.stack_pointer = top;
}

#else

}  // namespace emulator
#include <ucontext.h>
namespace emulator {

struct Fibre {
  ucontext_t context{};
  unsigned char* stack = nullptr;
  size_t stack_bytes = 0;
};

inline void switch_fibre(Fibre& from, Fibre& to) { swapcontext(&from.context, &to.context); }

inline void start_fibre(Fibre& fibre, void (*entry)()) {
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.stack;
  fibre.context.uc_stack.ss_size = fibre.stack_bytes;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, entry, 0);
}

#endif

constexpr size_t kStack = 128 * 1024;
constexpr size_t kLine = 64;
constexpr size_t kColours = 61;  // lines of a page that tops are spread over

// Stacks for `fibres` fibres, kept from launch to launch: to map, touch and return a thousand of
// them takes longer than most kernels.
inline unsigned char* stacks_of(size_t fibres) {
  static unsigned char* stacks = nullptr;
  static size_t held = 0;
  if (fibres > held) {
    if (stacks) munmap(stacks, held * kStack);
    void* const mapped = mmap(nullptr, fibres * kStack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    stacks = static_cast<unsigned char*>(mapped);
    held = fibres;
  }
  return stacks;
}

// The stack of one fibre. Tops begin on different cache lines: a whole number of pages apart, all
// would contend for the same few sets.
inline void give_stack(Fibre& fibre, unsigned char* stacks, size_t place) {
  fibre.stack = stacks + place * kStack;
  fibre.stack_bytes = kStack - place % kColours * kLine;
}

}  // namespace emulator
