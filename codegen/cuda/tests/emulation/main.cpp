// Runs launches that a file describes: for each case buffers, launches, and which buffers to write to the second file.
// All numbers are 64-bit words of this machine. Buffers are allocated exactly, so that the sanitizer sees every overrun.
#include "shim.h"

static FILE* input;

static uint64_t read_word() {
  uint64_t word;
  if (fread(&word, 8, 1, input) != 1) exit(4);
  return word;
}

struct Call {
  const emulation::Kernel* kernel;
  const uint64_t* words;
};

int main(int, char** argv) {
  input = fopen(argv[1], "rb");
  FILE* output = fopen(argv[2], "wb");
  if (input == nullptr || output == nullptr) return 4;
  for (uint64_t cases = read_word(); cases > 0; --cases) {
    std::vector<std::pair<char*, uint64_t>> buffers(read_word());
    for (auto& [bytes, size] : buffers) {
      size = read_word();
      void* place = nullptr;
      if (posix_memalign(&place, 64, size) != 0) return 4;
      bytes = static_cast<char*>(place);
      if (fread(bytes, 1, size, input) != size) return 4;
    }
    for (uint64_t launches = read_word(); launches > 0; --launches) {
      const emulation::Kernel& kernel = emulation::table().at(read_word());
      uint64_t grid[3] = {read_word(), read_word(), read_word()};
      unsigned block = (unsigned)read_word();
      std::vector<uint64_t> words(read_word());
      for (uint64_t& word : words) {
        bool is_address = read_word() == 1;
        uint64_t value = read_word();
        word = is_address ? reinterpret_cast<uint64_t>(buffers.at(value).first) : value;
        word += read_word();
      }
      if (words.size() != kernel.arity) emulation::fail("a launch has another number of arguments than its kernel");
      Call call{&kernel, words.data()};
      auto run = [](void* p) { ((Call*)p)->kernel->call(((Call*)p)->kernel->function, ((Call*)p)->words); };
      emulation::launch(grid, block, run, &call);
    }
    for (uint64_t written = read_word(); written > 0; --written) {
      auto& [bytes, size] = buffers.at(read_word());
      if (fwrite(bytes, 1, size, output) != size) return 4;
    }
    for (auto& [bytes, size] : buffers) free(bytes);
  }
  return fclose(output) == 0 ? 0 : 4;
}
