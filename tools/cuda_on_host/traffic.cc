// Which sectors of memory, 32 bytes, each launch has read and written. g++ calls these functions where it is told to look for
// bad addresses (`build.COUNTED`).

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

std::mutex mutex;
std::vector<std::unordered_map<std::uint64_t, unsigned>> launches;  // by sector: 1 where it was read, 2 where it was written

void touch(std::uint64_t address, std::uint64_t bytes, unsigned how) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (std::uint64_t sector = address / 32; sector <= (address + bytes - 1) / 32 && !launches.empty(); ++sector)
    launches.back()[sector] |= how;
}

}  // namespace

#define TOUCH(bytes)                                                                                \
  extern "C" void __asan_load##bytes##_noabort(std::uint64_t address) { touch(address, bytes, 1); } \
  extern "C" void __asan_store##bytes##_noabort(std::uint64_t address) { touch(address, bytes, 2); }
TOUCH(1)
TOUCH(2)
TOUCH(4)
TOUCH(8)
TOUCH(16)
extern "C" void __asan_loadN_noabort(std::uint64_t address, std::uint64_t bytes) { touch(address, bytes, 1); }
extern "C" void __asan_storeN_noabort(std::uint64_t address, std::uint64_t bytes) { touch(address, bytes, 2); }
extern "C" void __asan_handle_no_return() {}

// What is touched from now on belongs to the next launch; 0: and all that was is forgotten.
extern "C" void cuda_on_host_count_launch(int next) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (next) launches.emplace_back();
  else launches.clear();
}
// How many sectors between two addresses a launch has read (1) or written (2).
extern "C" std::uint64_t cuda_on_host_sectors(std::uint64_t launch, std::uint64_t begin, std::uint64_t end, unsigned how) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto& touched = launches.at(launch);
  return std::count_if(touched.begin(), touched.end(), [=](const auto& entry) {
    return entry.first >= begin / 32 && entry.first * 32 < end && (entry.second & how);
  });
}
