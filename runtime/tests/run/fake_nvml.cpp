// NVML without a GPU: a context takes 1 MiB, or 48, and other programs have 5 MiB. FAKE_CUDA names a state.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
};

struct Memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
static char device;

extern "C" {
int nvmlInit_v2() { return SUCCESS; }
int nvmlShutdown() { return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** handle) {
  return *handle = &device, strcmp(bus, "00000000:3B:00.0") == 0 ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* processes) {
  if (handle != &device) return NOT_FOUND;
  unsigned room = *count;
  *count = 1;
  if (processes == nullptr || room < 1) return INSUFFICIENT_SIZE;
  processes[0] = Process{1, 5ull << 20, 0xffffffff, 0xffffffff};
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void* handle, Memory* memory) {
  const char* state = getenv("FAKE_CUDA");
  auto is = [&](const char* name) { return state != nullptr && strcmp(state, name) == 0; };
  if (is("no meter")) return NOT_SUPPORTED;
  if (handle != &device || memory->version != (sizeof(Memory) | 2u << 24)) return NOT_FOUND;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto contexts = (int (*)())dlsym(driver, "fake_contexts");
  memory->used = (5ull << 20) + (contexts() == 0 ? 0 : is("large context") ? 48ull << 20 : 1ull << 20);
  return SUCCESS;
}
}
