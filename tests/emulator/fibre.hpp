// A fibre: a stack and where it stopped. Switched by hand on x86-64, by ucontext elsewhere.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emulator {

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Fibre {
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
  size_t stack_bytes = 0;
};

// Saves what a callee must keep on the stack that is left, restores it from the one entered.
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
  ret
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

inline void allocate_fibre(Fibre& fibre, size_t bytes) {
  void* stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fibre.stack = static_cast<unsigned char*>(stack);
  fibre.stack_bytes = bytes;
}

inline void free_fibre(Fibre& fibre, size_t bytes) { munmap(fibre.stack, bytes); }

}  // namespace emulator
