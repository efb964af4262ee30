// Replays one recorded launch: runner ENTRY INPUT OUTPUT. replay.py writes the input and reads the output.
//
// The input is a row of 64-bit numbers, then the bytes of the buffers. Every buffer is an allocation of its own size,
// so that AddressSanitizer sees the first byte beside it.

#include "runtime.h"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Number = std::uint64_t;

void read_all(std::FILE* file, void* target, std::size_t bytes) {
  if (bytes > 0 && std::fread(target, 1, bytes, file) != bytes) {
    std::fprintf(stderr, "the recorded launch ends early\n");
    std::exit(2);
  }
}

Number read_number(std::FILE* file) {
  Number number = 0;
  read_all(file, &number, sizeof number);
  return number;
}

// Keeps all threads on one processor: to wake each other across two costs more than twice as much, and what sanitizers
// find does not depend on threads that run at the same moment.
void stay_on_one_processor() {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int choice = getpid() % CPU_COUNT(&allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || choice-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) return 2;
  stay_on_one_processor();
  const std::string entry = words[1];
  std::FILE* file = std::fopen(words[2], "rb");
  if (!file) return 2;

  CudaOnHostLaunch launch{};
  std::uint32_t* const fields[] = {&launch.grid_x,  &launch.grid_y,      &launch.block, &launch.shared_bytes,
                                   &launch.cluster, &launch.cooperative, &launch.fill,  &launch.together};
  for (std::uint32_t* field : fields) *field = static_cast<std::uint32_t>(read_number(file));
  launch.patience = static_cast<double>(read_number(file));
  launch.name = words[1];
  *reinterpret_cast<void**>(&launch.entry) = dlsym(RTLD_DEFAULT, (entry + "__launch").c_str());
  if (!launch.entry) return 2;

  struct Slot {
    Number is_pointer, value, offset;
  };
  std::vector<Slot> slots(read_number(file));
  for (Slot& slot : slots) slot = {read_number(file), read_number(file), read_number(file)};
  std::vector<Number> sizes(read_number(file));
  for (Number& size : sizes) size = read_number(file);
  std::vector<unsigned char*> buffers;
  for (const Number size : sizes) {
    void* buffer = nullptr;
    if (posix_memalign(&buffer, 256, size) != 0) return 2;
    read_all(file, buffer, size);
    buffers.push_back(static_cast<unsigned char*>(buffer));
  }
  std::fclose(file);

  std::vector<Number> arguments;
  for (const Slot& slot : slots)
    arguments.push_back(slot.is_pointer ? reinterpret_cast<Number>(buffers[slot.value] + slot.offset) : slot.value);
  launch.slots = arguments.data();
  char message[8192] = "";
  if (cuda_on_host_launch(&launch, message, sizeof message)) {
    std::fprintf(stderr, "%s\n", message);
    return 3;
  }

  std::FILE* output = std::fopen(words[3], "wb");
  if (!output) return 2;
  for (std::size_t i = 0; i < buffers.size(); ++i) std::fwrite(buffers[i], 1, sizes[i], output);
  std::fclose(output);
  // Workers of the pool still sleep: leave without tearing down what they sleep in.
  std::fflush(nullptr);
  std::_Exit(0);
}
