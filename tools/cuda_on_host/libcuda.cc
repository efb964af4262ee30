// The CUDA driver of devices that are the host: what CuPy calls of libcuda.so.1, and of the runtime that is linked into it.
//
// Memory is the host's, a stream does its work at once, and a launch runs what g++ has made of the text whose cubin was
// loaded. Functions of the runtime have the prefix `runtime_`; `libcuda.py` puts them in the place of CuPy's.

#include <elf.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime.h"

namespace {

enum Status {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kLaunchFailed = 719,
  kTooLarge = 720,
  kCapturing = 900,
};

using Number = std::uint64_t;

// What Python sets through ctypes.
struct Device {
  int capability[2];
  int multiprocessors, shared_bytes;
  int clusters[9];  // how many run at once, by their size; 0: as many as there are multiprocessors for
  Number memory_bytes;
};
const int kDevices = 64, kThreads = 2048;

struct Settings {
  int visible;     // whether there are devices at all
  int executes;    // 0: launches are checked and do nothing
  int finishes;    // 0: no event has happened yet
  CudaOnHostLaunch launch;  // fill, together, fibers and patience of launches
  void (*observer)(const char* what, const Number* numbers);
};

}  // namespace

extern "C" {
Device cuda_on_host_devices[kDevices];
Settings cuda_on_host_settings = {0, 1, 1, {}, nullptr};
}

namespace {

Settings& settings = cuda_on_host_settings;
__thread int current = 0;  // torch has left little room for variables of threads
std::string failure;       // the last one
std::mutex lock;
std::set<void*> capturing;
Number handles = 0x1000;

void tell(const char* what, Number first = 0, Number second = 0, Number third = 0, Number fourth = 0) {
  const Number numbers[] = {first, second, third, fourth};
  if (settings.observer) settings.observer(what, numbers);
}
Number number(const void* pointer) {
  return reinterpret_cast<Number>(pointer);
}
int fail(int status, const std::string& message) {
  const std::lock_guard<std::mutex> guard(lock);
  failure = message;
  return status;
}
// A stream or an event, told apart by nothing but its address.
int make_handle(void** out) {
  const std::lock_guard<std::mutex> guard(lock);
  *out = reinterpret_cast<void*>(handles += 16);
  return kSuccess;
}

struct Module {
  std::vector<unsigned char> image;

  const Elf64_Ehdr& header() const { return *reinterpret_cast<const Elf64_Ehdr*>(image.data()); }
  const Elf64_Shdr& section(unsigned i) const {
    return reinterpret_cast<const Elf64_Shdr*>(image.data() + header().e_shoff)[i];
  }
  // The section of this name, null if there is none.
  const Elf64_Shdr* find(const std::string& name) const {
    const char* names = reinterpret_cast<const char*>(image.data() + section(header().e_shstrndx).sh_offset);
    for (unsigned i = 0; i < header().e_shnum; ++i)
      if (names + section(i).sh_name == name) return &section(i);
    return nullptr;
  }
  // The sizes of a kernel's parameters, in their order.
  std::vector<unsigned> parameters(const Elf64_Shdr& info) const {
    std::vector<unsigned> sizes;
    const unsigned char *at = image.data() + info.sh_offset, *end = at + info.sh_size;
    while (at + 4 <= end) {
      const unsigned format = at[0], attribute = at[1];
      std::uint16_t bytes;
      std::memcpy(&bytes, at + 2, 2);
      if (format == 4 && attribute == 0x17) {  // EIATTR_KPARAM_INFO: index, ordinal, offset, size above bit 18
        std::uint16_t ordinal;
        std::uint32_t flags;
        std::memcpy(&ordinal, at + 8, 2);
        std::memcpy(&flags, at + 12, 4);
        if (sizes.size() <= ordinal) sizes.resize(ordinal + 1u);
        sizes[ordinal] = flags >> 18;
      }
      at += 4 + (format == 4 ? bytes : 0);
    }
    return sizes;
  }
};

struct Function {
  std::string name;
  std::vector<unsigned> sizes;
  int largest_shared = 48 << 10;
  void (*entry)(const Number*) = nullptr;
  unsigned threads = 0, cluster = 1;
};

int at_once(const Function& function, int block, std::size_t shared) {
  const Device& device = cuda_on_host_devices[current];
  if (function.cluster > 1 && device.clusters[function.cluster]) return device.clusters[function.cluster];
  const int fit = shared ? static_cast<int>(device.shared_bytes / shared) : kThreads;
  const int each = fit < kThreads / block ? fit : kThreads / block;
  const int all = each * device.multiprocessors / static_cast<int>(function.cluster);
  return each && !all ? 1 : all;
}

int launch(const Function& function, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared,
           void* stream, void** arguments, bool cooperative) {
  const Number blocks = Number(grid[0]) * grid[1];
  tell(function.name.c_str(), blocks, static_cast<Number>(current), number(stream), cooperative);
  const Device& device = cuda_on_host_devices[current];
  const std::string name = function.name + ": ";
  if (!function.entry) return fail(kInvalidHandle, name + "no build for the host is known");
  if (grid[2] != 1 || block[1] != 1 || block[2] != 1) return fail(kInvalidValue, name + "a third dimension");
  if (!blocks || grid[0] >> 31 || grid[1] >> 16) return fail(kInvalidValue, name + "a grid that no device takes");
  if (!block[0] || block[0] % 32) return fail(kInvalidValue, name + "a part of a warp");
  if (block[0] > function.threads) return fail(kInvalidValue, name + "more threads than its __launch_bounds__");
  if (function.cluster > (device.capability[0] < 9 ? 1u : 8u)) return fail(kInvalidValue, name + "too large a cluster");
  if (grid[0] % function.cluster) return fail(kInvalidValue, name + "a part of a cluster");
  if (static_cast<int>(shared) > function.largest_shared || function.largest_shared > device.shared_bytes)
    return fail(kInvalidValue, name + "more shared memory than it was allowed");
  if (cooperative && blocks > Number(at_once(function, block[0], shared)) * function.cluster)
    return fail(kTooLarge, name + "more blocks than run at once");
  if (!settings.executes) return kSuccess;
  std::vector<Number> slots(function.sizes.size() + 1);
  for (std::size_t i = 0; i < function.sizes.size(); ++i) std::memcpy(&slots[i], arguments[i], function.sizes[i]);
  CudaOnHostLaunch asked = settings.launch;
  asked.entry = function.entry;
  asked.slots = slots.data();
  asked.name = function.name.c_str();
  asked.grid_x = grid[0];
  asked.grid_y = grid[1];
  asked.block = block[0];
  asked.shared_bytes = shared;
  asked.cluster = function.cluster;
  asked.cooperative = cooperative;
  char message[8192] = "";
  return cuda_on_host_launch(&asked, message, sizeof message) ? fail(kLaunchFailed, message) : kSuccess;
}

}  // namespace

extern "C" {

// What the host runs for a function. Null, or why it cannot be that of the cubin.
const char* cuda_on_host_bind(void* handle, void (*entry)(const Number*), const char* letters, unsigned threads,
                              unsigned cluster) {
  Function& function = *static_cast<Function*>(handle);
  std::vector<unsigned> sizes;
  for (; *letters; ++letters) sizes.push_back(std::strchr("PqQd", *letters) ? 8 : std::strchr("iIf", *letters) ? 4 : std::strchr("hH", *letters) ? 2 : 1);
  if (sizes != function.sizes) return "its parameters in the cubin are others than on the host";
  function.entry = entry;
  function.threads = threads;
  function.cluster = cluster;
  return nullptr;
}

// The driver.

int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = failure.c_str();
  return kSuccess;
}
int cuModuleLoadData(void** out, const void* image) {
  const Elf64_Ehdr& header = *static_cast<const Elf64_Ehdr*>(image);
  const int machine_of_cuda = 190;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != machine_of_cuda)
    return fail(kInvalidImage, "this is no cubin");
  const Device& device = cuda_on_host_devices[current];
  const int architecture = header.e_flags >> 8 & 0xff;
  if (architecture / 10 != device.capability[0] || architecture % 10 > device.capability[1])
    return fail(kInvalidImage, "the cubin is for sm_" + std::to_string(architecture));
  const unsigned char* bytes = static_cast<const unsigned char*>(image);
  const Number sections = header.e_shoff + Number(header.e_shnum) * header.e_shentsize;
  const Number segments = header.e_phoff + Number(header.e_phnum) * header.e_phentsize;
  *out = new Module{{bytes, bytes + (sections > segments ? sections : segments)}};
  return kSuccess;
}
int cuModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  return kSuccess;
}
int cuModuleGetFunction(void** out, void* from, const char* name) {
  const Module& module = *static_cast<Module*>(from);
  const Elf64_Shdr* info = module.find(std::string(".nv.info.") + name);
  if (!info) return fail(kNotFound, std::string("the cubin has no kernel ") + name);
  // Never given back: CuPy says nothing when it forgets a function.
  *out = new Function{name, module.parameters(*info)};
  return kSuccess;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  const int largest_shared = 8;
  if (attribute != largest_shared || value > cuda_on_host_devices[current].shared_bytes)
    return fail(kInvalidValue, "an attribute that the device does not take");
  static_cast<Function*>(function)->largest_shared = value;
  return kSuccess;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void* function, int block, std::size_t shared) {
  *count = at_once(*static_cast<Function*>(function), block, shared) / cuda_on_host_devices[current].multiprocessors;
  return kSuccess;
}
// CUlaunchConfig begins so.
struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  struct {
    int id;
    char pad[4];
    unsigned value[16];
  } * attributes;
  unsigned num_attributes;
};
int cuOccupancyMaxActiveClusters(int* count, void* handle, const Config* config) {
  const int cluster_dimension = 4;
  const Function& function = *static_cast<Function*>(handle);
  if (config->num_attributes != 1 || config->attributes->id != cluster_dimension ||
      config->attributes->value[0] != function.cluster || config->grid[0] % function.cluster)
    return kInvalidValue;
  *count = at_once(function, static_cast<int>(config->block[0]), config->shared_bytes);
  return kSuccess;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void**) {
  return launch(*static_cast<Function*>(function), {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, false);
}
int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void* stream, void** arguments) {
  return launch(*static_cast<Function*>(function), {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, true);
}

// The runtime.

int runtime_cudaGetLastError() { return kSuccess; }
int runtime_cudaEventDestroy(void*) { return kSuccess; }
int runtime_cudaStreamDestroy(void*) { return kSuccess; }

const char* runtime_cudaGetErrorName(int status) {
  return status == kNoDevice ? "cudaErrorNoDevice" : "cudaError";
}
const char* runtime_cudaGetErrorString(int status) {
  return status == kNoDevice ? "no CUDA-capable device is detected" : failure.c_str();
}
int runtime_cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return settings.visible ? kSuccess : kNoDevice;
}
int runtime_cudaGetDevice(int* device) {
  *device = current;
  return kSuccess;
}
int runtime_cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return fail(kInvalidDevice, "there is no such device");
  current = device;
  return kSuccess;
}
int runtime_cudaDeviceGetAttribute(int* value, int attribute, int index) {
  if (index < 0 || index >= kDevices) return fail(kInvalidDevice, "there is no such device");
  const Device& device = cuda_on_host_devices[index];
  switch (attribute) {
    case 10: *value = 32; break;                        // WarpSize
    case 16: *value = device.multiprocessors; break;    // MultiProcessorCount
    case 75: *value = device.capability[0]; break;      // ComputeCapabilityMajor
    case 76: *value = device.capability[1]; break;      // ComputeCapabilityMinor
    case 97: *value = device.shared_bytes; break;       // MaxSharedMemoryPerBlockOptin
    default: *value = 0;
  }
  return kSuccess;
}
int runtime_cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  tell("cudaMemGetInfo", static_cast<Number>(current));
  *free = *total = cuda_on_host_devices[current].memory_bytes;
  return kSuccess;
}
int runtime_cudaMalloc(void** out, std::size_t bytes) {
  if (posix_memalign(out, 512, bytes)) return fail(kOutOfMemory, "out of memory");
  std::memset(*out, static_cast<int>(settings.launch.fill), bytes);
  return kSuccess;
}
int runtime_cudaFree(void* memory) {
  std::free(memory);
  return kSuccess;
}
int runtime_cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  tell("cudaHostAlloc", bytes);
  return posix_memalign(out, 4096, bytes) ? fail(kOutOfMemory, "out of memory") : kSuccess;
}
int runtime_cudaFreeHost(void* memory) {
  std::free(memory);
  return kSuccess;
}
int runtime_cudaPointerGetAttributes(void* out, const void*) {
  std::memset(out, 0, 2 * sizeof(int));  // of the kind: memory of the host that is not registered
  return kSuccess;
}
int runtime_cudaMemsetAsync(void* to, int value, std::size_t bytes, void*) {
  std::memset(to, value, bytes);
  return kSuccess;
}
int runtime_cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, void* stream) {
  tell("cudaMemcpyAsync", number(from), bytes, number(stream));
  std::memcpy(to, from, bytes);
  return kSuccess;
}
int runtime_cudaEventCreateWithFlags(void** event, unsigned) {
  tell("cudaEventCreate", current);
  return make_handle(event);
}
int runtime_cudaEventQuery(void*) {
  return settings.finishes ? kSuccess : kNotReady;
}
int runtime_cudaEventRecord(void* event, void* stream) {
  tell("cudaEventRecord", number(event), number(stream));
  return kSuccess;
}
int runtime_cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  return make_handle(stream);
}
int runtime_cudaStreamSynchronize(void* stream) {
  tell("cudaStreamSynchronize", number(stream));
  return kSuccess;
}
int runtime_cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  tell("cudaStreamWaitEvent", number(stream), number(event));
  return kSuccess;
}
int runtime_cudaStreamBeginCapture(void* stream, int) {
  const std::lock_guard<std::mutex> guard(lock);
  capturing.insert(stream);
  return kSuccess;
}
int runtime_cudaStreamEndCapture(void* stream, void** graph) {
  const std::lock_guard<std::mutex> guard(lock);
  *graph = nullptr;
  return capturing.erase(stream) ? kSuccess : kCapturing;
}
int runtime_cudaStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard<std::mutex> guard(lock);
  *status = static_cast<int>(capturing.count(stream));
  return kSuccess;
}
}
