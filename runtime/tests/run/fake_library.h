// What the fakes of cuBLASLt and cuDNN share. They are libraries of their own beside the driver of fake.cpp.
//
// Everything follows the libraries' conventions: matrices by columns with leading dimensions and batches, descriptors by
// their setters, heuristics with ways of different workspace, order and precision. Ways differ in bits. A workspace is
// overwritten, wherever it is. How long a way takes is made up, and not in the order of the heuristic. What a caller must keep to is checked: a wrong call returns INVALID_VALUE or BAD_PARAM and is
// told on standard error, like handles that are left at the end. FAKE_LIBRARY names a function that fails, or a state.
// FAKE_LIBRARY_LOG names a file to which every call is added.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

typedef int64_t i64;

static bool fails(const char* how) {
  const char* wanted = getenv("FAKE_LIBRARY");
  return wanted != nullptr && strcmp(wanted, how) == 0;
}
static void note(const std::string& line) {
  const char* path = getenv("FAKE_LIBRARY_LOG");
  if (path == nullptr) return;
  FILE* file = fopen(path, "a");
  fprintf(file, "%s\n", line.c_str());
  fclose(file);
}
static bool wrong(const char* function, const char* what) {
  fprintf(stderr, "fake library: %s: %s\n", function, what);
  return false;
}
// In a function that returns a status of its library.
#define REQUIRE(condition) \
  if (!(condition)) return wrong(__func__, #condition), INVALID
#define MAY_FAIL \
  if (fails(__func__)) return EXECUTION_FAILED

// The driver's side.
template <class F> static F of_driver(const char* name) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return (F)dlsym(driver, name);
}
static bool within(const void* place, i64 bytes, i64 align) {
  bool is_aligned = (uint64_t)place % (uint64_t)align == 0;
  return is_aligned && of_driver<int (*)(const void*, size_t)>("fake_is_within")(place, (size_t)bytes) != 0;
}
static bool is_compute(void* stream) { return of_driver<int (*)(void*)>("fake_is_compute")(stream) != 0; }
static void issue(void* stream, std::function<void()> work) {
  auto run = [](void* data) { (*(std::function<void()>*)data)(); };
  of_driver<void (*)(void*, void (*)(void*), void*)>("fake_issue")(stream, run, new std::function<void()>(std::move(work)));
}
// In work: how long it takes by the driver's clock.
static void takes_ms(double ms) { of_driver<void (*)(double)>("fake_takes")(ms); }
static bool apart(const void* a, i64 m, const void* b, i64 n) {
  return (const char*)a + m <= (const char*)b || (const char*)b + n <= (const char*)a;
}

// What a library gave out, by kind.
enum Kind { LIBRARY = 1, DESC, LAYOUT, PREFERENCE, TENSOR, FILTER, WINDOW, ACTIVATION };
static std::map<void*, Kind> live;
template <class T> static void make(void** handle, Kind kind) { live[*handle = new T()] = kind; }
static bool is(const void* handle, Kind kind) {
  auto found = live.find((void*)handle);
  return found != live.end() && found->second == kind;
}
template <class T> static int drop(void* handle, Kind kind, int invalid) {
  if (!is(handle, kind)) return wrong("destroy", "no such handle"), invalid;
  live.erase(handle);
  delete (T*)handle;
  return 0;
}
static struct AtEnd {
  ~AtEnd() {
    if (!live.empty()) fprintf(stderr, "fake library: %zu handles are left\n", live.size());
  }
} at_end;

// Elements: 0 for f32, 2 for f16, and another number for bf16.
static i64 width(int type) { return type == 0 ? 4 : 2; }
static float get(int type, const void* from, i64 at) {
  float wide;
  if (type == 0) return ((const float*)from)[at];
  if (type == 2) return (float)((const _Float16*)from)[at];
  uint32_t bits = (uint32_t)((const uint16_t*)from)[at] << 16;
  return memcpy(&wide, &bits, 4), wide;
}
static void put(int type, void* to, i64 at, float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (type == 0) ((float*)to)[at] = value;
  else if (type == 2) ((_Float16*)to)[at] = (_Float16)value;
  else ((uint16_t*)to)[at] = (uint16_t)(value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// A product's operand with so many bits less: 13 for TF32, 16 for BF16; rounded to nearest.
static float coarse(float value, int lost) {
  if (lost == 0) return value;
  uint32_t bits, last = 1u << lost;
  memcpy(&bits, &value, 4);
  bits = (bits + last / 2 - 1 + (bits >> lost & 1)) & ~(last - 1);
  return memcpy(&value, &bits, 4), value;
}

// A sum in one order, cut in two, or in an order that changes from call to call.
enum Order { FORWARD, HALVES, ANY };
static float sum(i64 n, Order order, int calls, const std::function<float(i64)>& term) {
  float first = 0, second = 0;
  if (order == ANY && calls % 2 == 1) {
    for (i64 t = n - 1; t >= 0; --t) first += term(t);
    return first;
  }
  i64 middle = order == HALVES ? n / 2 : n;
  for (i64 t = 0; t < middle; ++t) first += term(t);
  for (i64 t = middle; t < n; ++t) second += term(t);
  return order == HALVES ? first + second : first;
}
