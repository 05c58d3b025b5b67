// NVIDIA's driver and NVRTC without a GPU, as far as memrun calls them: one file under both names.
//
// NVRTC compiles with g++ and a header that emulates a GPU's built-ins; its machine code is the path of a library, which
// the driver opens. Every command runs at once, in the order of issue, or when its graph is launched. What a program must do
// with handles and flags is checked: a wrong call returns CUDA_ERROR_INVALID_VALUE, one that CUDA forbids during a capture
// the error that CUDA has for it, and handles that are left when the context goes are told on standard error. FAKE_CUDA
// names a failure.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

static bool fails(const char* how) {
  const char* wanted = getenv("FAKE_CUDA");
  return wanted != nullptr && strcmp(wanted, how) == 0;
}

enum { SUCCESS = 0, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, NO_SUCH_DEVICE = 101, NOT_FOUND = 500, ILLEGAL = 700 };
static const size_t TOTAL = 1 << 30;
static std::set<void*> allocations, pinned, registered, streams, events, graphs, ready;
static std::map<void*, size_t> sizes;
static std::set<void*> compute;
static int contexts, modules, launches;
static bool crashed;

struct Module {
  uint64_t (*find)(const char*);
  uint64_t (*arity)(uint64_t);
  void (*launch)(uint64_t, const uint64_t*, uint64_t, const uint64_t*);
};
struct Function {
  Module* module;
  uint64_t index;
};

static int state() { return crashed ? ILLEGAL : contexts > 0 ? SUCCESS : INVALID; }
static int use(const std::set<void*>& handles, void* handle) { return handles.count(handle) == 0 ? INVALID : state(); }
static void* fresh(std::set<void*>& handles) {
  void* handle = malloc(1);
  handles.insert(handle);
  return handle;
}
static int drop(std::set<void*>& handles, void* handle) {
  if (handles.erase(handle) == 0) return INVALID;
  free(handle);
  return SUCCESS;
}

// A capture: how far each stream is, and what of other streams comes before that.
enum { UNSUPPORTED = 900, INVALIDATED = 901, UNMATCHED = 903, UNJOINED = 904, ISOLATION = 905, CAPTURED = 907 };
struct Line {
  uint64_t count = 0;
  std::map<void*, uint64_t> before;
};
using Nodes = std::vector<std::function<void()>>;
static struct {
  uint64_t number = 0;
  void* origin = nullptr;
  bool broken = false;
  std::map<void*, Line> lines;
  Nodes nodes;
} capture;
static uint64_t captures;
struct Event {
  unsigned flags;
  uint64_t captured = 0;
  void* stream = nullptr;
  Line at;
  double ms = -1;
};
static std::map<void*, Event> recorded;
static std::map<void*, Nodes> captured_nodes;

static bool capturing(void* stream) { return capture.origin != nullptr && capture.lines.count(stream) > 0; }
static int refuse(int error) { return capture.broken = true, error; }
// A call that is not allowed while this thread captures.
static int outside() { return capture.origin != nullptr ? refuse(UNSUPPORTED) : SUCCESS; }
static int run(void* stream, std::function<void()> command) {
  if (int error = use(streams, stream)) return error;
  if (!capturing(stream)) return command(), state();
  if (capture.broken) return INVALIDATED;
  capture.nodes.push_back(command);
  ++capture.lines[stream].count;
  return SUCCESS;
}
// What libraries say that their work takes, which no one waits for.
static double pretended_ms;
static double now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e3 + now.tv_nsec / 1e6 + pretended_ms;
}

extern "C" {
int cuInit(unsigned) {
  const std::map<std::string, int> errors = {{"no device", NO_DEVICE}, {"stub", 34}, {"not ready", 802}, {"mismatch", 803},
                                             {"compat", 804}, {"system", 304}, {"permission", 800}, {"unknown", 999}};
  auto error = errors.find(getenv("FAKE_CUDA") == nullptr ? "" : getenv("FAKE_CUDA"));
  return error == errors.end() ? SUCCESS : error->second;
}
int cuDriverGetVersion(int* version) { return *version = fails("old") ? 11080 : fails("CUDA 12") ? 12080 : 13000, SUCCESS; }
int cuDeviceGetCount(int* count) { return *count = fails("hidden") ? 0 : 1, SUCCESS; }
int cuDeviceGet(int* device, int ordinal) { return *device = 7, ordinal == 0 ? SUCCESS : NO_SUCH_DEVICE; }
int cuDeviceGetName(char* name, int size, int) {
  return snprintf(name, size, fails("other GPU") ? "Other GPU" : "Fake GPU"), SUCCESS;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  return snprintf(text, size, "00000000:3B:00.0"), device == 7 ? SUCCESS : NO_SUCH_DEVICE;
}
int fake_contexts() { return contexts; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = TOTAL, SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? fails("new GPU") ? 13 : fails("old GPU") ? 7 : 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 40 ? 3 : -1;
  return *value < 0 ? INVALID : SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  if (fails("full") || fails("exclusive")) return fails("full") ? NO_MEMORY : 46;
  return ++contexts, *context = &contexts, SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  size_t left = allocations.size() + pinned.size() + streams.size() + events.size() + modules;
  left += graphs.size() + ready.size() + registered.size();
  if (--contexts == 0 && left > 0) fprintf(stderr, "fake CUDA: %zu handles are left\n", left);
  return SUCCESS;
}
int cuCtxSynchronize() { return capture.origin != nullptr ? UNSUPPORTED : state(); }
int cuCtxSetCurrent(void* context) { return context == &contexts ? SUCCESS : INVALID; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, state(); }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = TOTAL / 2, *total = TOTAL, state(); }
int cuMemAlloc_v2(uint64_t* start, size_t bytes) {
  if (fails("memory")) return NO_MEMORY;
  if (int error = outside()) return error;
  void* place = aligned_alloc(256, (bytes + 255) / 256 * 256);
  allocations.insert(place);
  sizes[place] = bytes;
  *start = (uint64_t)place;
  return state();
}
int cuMemFree_v2(uint64_t start) { return drop(allocations, (void*)start); }
int cuMemHostAlloc(void** start, size_t bytes, unsigned flags) {
  // Portable, and not write-combined: the host reads it.
  if (flags != 1) return INVALID;
  *start = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  pinned.insert(*start);
  return state();
}
int cuMemHostRegister_v2(void* start, size_t bytes, unsigned flags) {
  if (flags != 1 || bytes == 0 || (uint64_t)start % 4096 != 0) return INVALID;
  if (fails("lock")) return NO_MEMORY;
  return registered.insert(start).second ? state() : INVALID;
}
int cuMemHostUnregister(void* start) { return registered.erase(start) == 1 ? SUCCESS : INVALID; }
int cuMemFreeHost(void* start) { return drop(pinned, start); }
int cuMemsetD8_v2(uint64_t start, unsigned char byte, size_t n) { return memset((void*)start, byte, n), state(); }
int cuMemsetD8Async(uint64_t start, unsigned char byte, size_t n, void* stream) {
  return run(stream, [=] { memset((void*)start, byte, n); });
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void* stream) {
  return run(stream, [=] { memmove((void*)to, (void*)from, n); });
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n) {
  if (int error = outside()) return error;
  return memcpy((void*)to, from, n), state();
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n) {
  if (int error = outside()) return error;
  return memcpy(to, (void*)from, n), state();
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  // Streams that wait for nothing but events; only that of kernels, which comes first, has priority.
  if (flags != 1 || (priority != -5 && (priority != 0 || streams.empty()))) return INVALID;
  *stream = fresh(streams);
  if (priority == -5) compute.insert(*stream);
  return state();
}
int cuStreamDestroy_v2(void* stream) { return compute.erase(stream), drop(streams, stream); }
int cuStreamSynchronize(void* stream) {
  if (capture.origin != nullptr && (stream == nullptr || capturing(stream))) return refuse(UNSUPPORTED);
  return stream == nullptr ? state() : use(streams, stream);
}
int cuStreamWaitEvent(void* stream, void* handle, unsigned flags) {
  if (flags > 1 || events.count(handle) == 0 || use(streams, stream) != SUCCESS) return INVALID;
  Event& event = recorded[handle];
  if (flags == 1) return capturing(stream) ? run(stream, [] {}) : INVALID;
  if (event.captured == 0) return capturing(stream) ? refuse(ISOLATION) : state();
  if (capture.origin == nullptr || event.captured != capture.number) return CAPTURED;
  Line& line = capture.lines[stream];
  for (auto& [other, count] : event.at.before) line.before[other] = std::max(line.before[other], count);
  line.before[event.stream] = std::max(line.before[event.stream], event.at.count);
  return SUCCESS;
}
int cuEventCreate(void** event, unsigned flags) {
  if (flags != 2 && flags != 0) return INVALID;
  *event = fresh(events);
  recorded[*event] = Event{flags};
  return state();
}
int cuEventDestroy_v2(void* event) { return recorded.erase(event), drop(events, event); }
int cuEventRecordWithFlags(void* handle, void* stream, unsigned flags) {
  if (flags > 1 || events.count(handle) == 0 || use(streams, stream) != SUCCESS) return INVALID;
  Event& event = recorded[handle];
  if (flags == 1) return capturing(stream) ? run(stream, [&event] {
    // Between a mark and the next.
    pretended_ms += fails("slow marks") ? 1000 : 0;
    event.ms = now_ms();
  }) : INVALID;
  event.captured = capturing(stream) ? capture.number : 0;
  if (event.captured == 0) return event.ms = now_ms(), state();
  event.stream = stream;
  event.at = capture.lines[stream];
  return SUCCESS;
}
int cuEventRecord(void* event, void* stream) { return cuEventRecordWithFlags(event, stream, 0); }
int cuEventSynchronize(void* event) {
  if (int error = use(events, event)) return error;
  return recorded[event].captured != 0 ? refuse(CAPTURED) : state();
}
int cuEventElapsedTime(float* ms, void* from, void* to) {
  if (events.count(from) == 0 || events.count(to) == 0) return INVALID;
  Event &a = recorded[from], &b = recorded[to];
  if (a.flags != 0 || b.flags != 0 || a.ms < 0 || b.ms < 0) return INVALID;
  return *ms = b.ms - a.ms, state();
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (fails("capture")) return 801;
  if (mode != 1 || capture.origin != nullptr || use(streams, stream) != SUCCESS) return INVALID;
  capture = {++captures, stream, false, {{stream, Line()}}, {}};
  return SUCCESS;
}
int cuStreamEndCapture(void* stream, void** graph) {
  *graph = nullptr;
  if (stream != capture.origin || stream == nullptr) return refuse(UNMATCHED);
  auto ended = capture;
  capture.origin = nullptr;
  if (ended.broken) return INVALIDATED;
  for (auto& [other, line] : ended.lines)
    if (other != stream && ended.lines[stream].before[other] != line.count) return UNJOINED;
  *graph = fresh(graphs);
  captured_nodes[*graph] = ended.nodes;
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  // Nodes keep the priorities of their streams.
  if (flags != 8 || graphs.count(graph) == 0) return INVALID;
  *executable = fresh(ready);
  captured_nodes[*executable] = captured_nodes[graph];
  return state();
}
int cuGraphDestroy(void* graph) { return captured_nodes.erase(graph), drop(graphs, graph); }
int cuGraphExecDestroy(void* graph) { return captured_nodes.erase(graph), drop(ready, graph); }
int cuGraphUpload(void* graph, void* stream) { return use(ready, graph) == SUCCESS ? use(streams, stream) : INVALID; }
int cuGraphLaunch(void* graph, void* stream) {
  if (ready.count(graph) == 0 || capturing(stream)) return INVALID;
  for (auto& node : captured_nodes[graph]) node();
  return use(streams, stream);
}
int cuModuleLoadData(void** module, const void* image) {
  if (int error = outside()) return error;
  void* library = dlopen((const char*)image, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || fails("image")) return INVALID;
  Module* loaded = new Module;
  *(void**)&loaded->find = dlsym(library, "fake_find");
  *(void**)&loaded->arity = dlsym(library, "fake_arity");
  *(void**)&loaded->launch = dlsym(library, "fake_launch");
  return ++modules, *module = loaded, state();
}
int cuModuleUnload(void*) { return --modules, SUCCESS; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  uint64_t index = ((Module*)module)->find(name);
  if (index == UINT64_MAX) return NOT_FOUND;
  return *function = new Function{(Module*)module, index}, state();
}
int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data) {
  if (stream == nullptr) return INVALID;
  if (crashed) return ILLEGAL;
  return run(stream, [=] { work(data); });
}

int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** params, void** extra) {
  if (by != 1 || bz != 1 || shared != 0 || extra != nullptr || stream == nullptr) return INVALID;
  if (crashed) return ILLEGAL;
  Function* function = (Function*)f;
  std::vector<uint64_t> words(function->module->arity(function->index));
  for (size_t i = 0; i < words.size(); ++i) memcpy(&words[i], params[i], 8);
  return run(stream, [=] {
    uint64_t grid[3] = {gx, gy, gz};
    crashed = crashed || (fails("crash") && ++launches > 12);
    if (!crashed) function->module->launch(function->index, grid, bx, words.data());
  });
}
// What the fakes of other libraries ask this one.
int fake_is_within(const void* place, size_t bytes) {
  for (void* start : allocations) {
    if (place >= start && (const char*)place + bytes <= (char*)start + sizes[start]) return 1;
  }
  return 0;
}
int fake_is_compute(void* stream) { return compute.count(stream) == 1 && state() == SUCCESS; }
void fake_takes(double ms) { pretended_ms += ms; }
// Runs work of theirs in a stream.
int fake_issue(void* stream, void (*work)(void*), void* data) {
  return run(stream, [=] { work(data); });
}
int cuGetErrorName(int error, const char** name) {
  return *name = error == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == ILLEGAL ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                                                     : "CUDA_ERROR_OF_THE_FAKE",
         SUCCESS;
}
int cuGetErrorString(int, const char** meaning) { return *meaning = "as FAKE_CUDA asks", SUCCESS; }

struct Unit {
  std::string text, log, image;
};
int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
const char* nvrtcGetErrorString(int) { return "an error of the fake"; }
int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*, const char* const*) {
  return *program = new Unit{text, "", ""}, 0;
}
int nvrtcDestroyProgram(void** program) { return delete (Unit*)*program, 0; }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  Unit& unit = *(Unit*)program;
  bool arch = false;
  const char* wanted = fails("new GPU") ? "--gpu-architecture=compute_90" : "--gpu-architecture=sm_90";
  for (int i = 0; i < count; ++i) arch |= strcmp(options[i], wanted) == 0;
  if (!arch || fails("compile")) return unit.log = "memrun.cu(1): error: as FAKE_CUDA asks", 6;
  std::string stem = std::string(getenv("FAKE_CUDA_FOLDER")) + "/" + std::to_string(std::hash<std::string>{}(unit.text));
  std::ofstream source(stem + ".cpp");
  source << "#include \"shim.h\"\n" << unit.text << "static const char* names[] = {\n";
  std::istringstream lines(unit.text);
  std::ostringstream registers;
  const std::string head = "extern \"C\" __global__ void ";
  int kernels = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, head.size(), head) != 0) continue;
    size_t begin = line.find(") ", head.size()) + 2;
    std::string name = line.substr(begin, line.find('(', begin) - begin);
    source << "\"" << name << "\",\n";
    registers << "static emulation::Register r" << kernels << "(" << kernels << ", &" << name << ");\n";
    ++kernels;
  }
  source << "nullptr};\n" << registers.str() << R"(
extern "C" uint64_t fake_find(const char* name) {
  for (uint64_t i = 0; names[i] != nullptr; ++i) if (strcmp(names[i], name) == 0) return i;
  return UINT64_MAX;
}
extern "C" uint64_t fake_arity(uint64_t kernel) { return emulation::table().at(kernel).arity; }
extern "C" void fake_launch(uint64_t index, const uint64_t* grid, uint64_t block, const uint64_t* words) {
  struct Call { const emulation::Kernel* kernel; const uint64_t* words; } call{&emulation::table().at(index), words};
  auto run = [](void* p) { ((Call*)p)->kernel->call(((Call*)p)->kernel->function, ((Call*)p)->words); };
  emulation::launch(grid, (unsigned)block, run, &call);
}
)";
  source.close();
  unit.image = stem + ".so";
  std::string command = "g++ -std=c++17 -O1 -w -shared -fPIC -fno-gnu-unique -fno-strict-aliasing -ffp-contract=off -I '" +
                        std::string(getenv("FAKE_CUDA_SHIM")) + "' -o '" + unit.image + "' '" + stem + ".cpp'";
  return system(command.c_str()) == 0 ? 0 : 6;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) { return *size = ((Unit*)program)->log.size() + 1, 0; }
int nvrtcGetProgramLog(void* program, char* log) { return strcpy(log, ((Unit*)program)->log.c_str()), 0; }
int nvrtcGetPTXSize(void* program, size_t* size) { return *size = ((Unit*)program)->image.size() + 1, 0; }
int nvrtcGetPTX(void* program, char* text) { return strcpy(text, ((Unit*)program)->image.c_str()), 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { return *size = ((Unit*)program)->image.size() + 1, 0; }
int nvrtcGetCUBIN(void* program, char* image) { return strcpy(image, ((Unit*)program)->image.c_str()), 0; }
}
