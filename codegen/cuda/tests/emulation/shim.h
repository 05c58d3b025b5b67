// CUDA's built-ins on one CPU thread, so that g++ compiles kernel text as it is.
//
// The threads of a block are fibers that run until they wait. A barrier opens when every thread of the block that has not
// returned waits at it, a warp's exchange when all its threads do; anything else ends the program with a message. Blocks
// run one after another, so that shared memory is static. This is for checking kernels, not for speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define MEMC_EMULATED 1
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static
#define __launch_bounds__(threads, blocks)

struct Index3 {
  unsigned x, y, z;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum State { FRESH, READY, AT_BARRIER, AT_EXCHANGE, RETURNED };

constexpr unsigned MOST = 1024;
constexpr size_t STACK = 128 * 1024;

struct Fiber {
  void* stack_pointer;
  State state;
};
inline Fiber fibers[MOST];
inline uint64_t slots[MOST];
inline char* stacks;
inline void* scheduler;
inline unsigned current, threads;
inline void (*entry)(void*);
inline void* argument;

[[noreturn]] inline void fail(const char* why) {
  fprintf(stderr, "thread %u of block (%u, %u, %u): %s\n", current, blockIdx.x, blockIdx.y, blockIdx.z, why);
  fflush(stderr);
  _Exit(3);
}

#if !defined(__x86_64__)
#error "fibers are written for x86-64"
#endif

// Saves the registers that calls preserve, and the stack pointer at `from`; goes on at `to`.
extern "C" void emulation_switch(void** from, void* to);
asm(R"(.text
.weak emulation_switch
.type emulation_switch,@function
emulation_switch:
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

inline void wait(State state) {
  fibers[current].state = state;
  emulation_switch(&fibers[current].stack_pointer, scheduler);
}

inline void run_fiber() {
  entry(argument);
  wait(RETURNED);
  fail("a thread went on after its end");
}

inline void resume(unsigned thread) {
  Fiber& fiber = fibers[thread];
  if (fiber.state == FRESH) {
    // What emulation_switch pops: six registers and the address to return to, which is 8 modulo 16 like after a call.
    void** top = reinterpret_cast<void**>(stacks + (thread + 1) * STACK - 64);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&run_fiber);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
  }
  fiber.state = READY;
  current = thread;
  threadIdx.x = thread;
  emulation_switch(&scheduler, fiber.stack_pointer);
}

inline bool all_in(unsigned begin, unsigned end, State state) {
  for (unsigned t = begin; t < end; ++t) {
    if (fibers[t].state != state) return false;
  }
  return true;
}

inline void run_block() {
  for (unsigned t = 0; t < threads; ++t) fibers[t].state = FRESH;
  for (unsigned t = 0; t < threads; ++t) resume(t);
  for (;;) {
    bool moved = false;
    for (unsigned begin = 0; begin < threads; begin += 32) {
      if (!all_in(begin, begin + 32, AT_EXCHANGE)) continue;
      moved = true;
      for (unsigned t = begin; t < begin + 32; ++t) resume(t);
    }
    if (moved) continue;
    bool waits = false;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].state == AT_EXCHANGE) fail("a warp's exchange lacks threads");
      waits |= fibers[t].state == AT_BARRIER;
    }
    if (!waits) return;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
    }
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].state == READY) resume(t);
    }
  }
}

inline void launch(const uint64_t* grid, unsigned block, void (*f)(void*), void* arg) {
  if (block == 0 || block > MOST || block % 32 != 0 || grid[0] == 0 || grid[1] == 0 || grid[2] == 0) fail("bad launch");
  if (grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535) fail("grid too large");
  if (stacks == nullptr) stacks = static_cast<char*>(malloc(MOST * STACK));
  entry = f;
  argument = arg;
  threads = block;
  blockDim = {block, 1, 1};
  gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
    }
  }
}

template <class T> uint64_t exchange(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= 8, "a slot has eight bytes");
  if (mask != 0xffffffffu) fail("an exchange of a part of a warp");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  slots[current] = bits;
  wait(AT_EXCHANGE);
  bits = slots[current / 32 * 32 + from];
  wait(AT_EXCHANGE);
  return bits;
}

// A kernel of the table, and its call with words that are addresses or integers.
struct Kernel {
  void (*function)();
  void (*call)(void (*)(), const uint64_t*);
  size_t arity;
};
inline std::vector<Kernel>& table() {
  static std::vector<Kernel> kernels;
  return kernels;
}

template <class T> T word(uint64_t value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

template <class... P, size_t... I> void spread(void (*f)(P...), const uint64_t* words, std::index_sequence<I...>) {
  f(word<P>(words[I])...);
}

struct Register {
  template <class... P> Register(size_t index, void (*f)(P...)) {
    if (table().size() <= index) table().resize(index + 1);
    auto call = [](void (*any)(), const uint64_t* words) {
      spread(reinterpret_cast<void (*)(P...)>(any), words, std::index_sequence_for<P...>{});
    };
    table()[index] = {reinterpret_cast<void (*)()>(f), call, sizeof...(P)};
  }
};

}  // namespace emulation

inline void __syncthreads() { emulation::wait(emulation::AT_BARRIER); }

template <class T> T __shfl_xor_sync(unsigned mask, T value, int away) {
  uint64_t bits = emulation::exchange(mask, value, (emulation::current % 32) ^ (unsigned)away);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  if (mask != 0xffffffffu) emulation::fail("a vote of a part of a warp");
  emulation::slots[emulation::current] = predicate != 0;
  emulation::wait(emulation::AT_EXCHANGE);
  unsigned votes = 0;
  for (unsigned t = 0; t < 32; ++t) votes |= (unsigned)emulation::slots[emulation::current / 32 * 32 + t] << t;
  emulation::wait(emulation::AT_EXCHANGE);
  return votes;
}

inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  if (mask != 0xffffffffu) emulation::fail("a vote of a part of a warp");
  emulation::slots[emulation::current] = value;
  emulation::wait(emulation::AT_EXCHANGE);
  unsigned same = 0;
  for (unsigned t = 0; t < 32; ++t) same |= (unsigned)(emulation::slots[emulation::current / 32 * 32 + t] == value) << t;
  emulation::wait(emulation::AT_EXCHANGE);
  return same;
}

inline void __syncwarp() { emulation::wait(emulation::AT_EXCHANGE); }

// Threads take turns.
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  unsigned old = *at;
  *at += value;
  return old;
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  unsigned long long old = *at;
  if (value < old) *at = value;
  return old;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// What the conversion instructions of the device do.
inline float half_to_float(unsigned short bits) {
  _Float16 x;
  memcpy(&x, &bits, 2);
  return (float)x;
}
inline unsigned short float_to_half(float x) {
  _Float16 half = (_Float16)x;
  unsigned short bits;
  memcpy(&bits, &half, 2);
  return bits;
}
