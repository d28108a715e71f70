#include "host_alloc.h"

#include <bit>

namespace rsx {
namespace {

constexpr size_t kPage = 4096;

class Pool {
 public:
  void* allocate(size_t nbytes) {
    const auto size = std::bit_ceil(std::max(nbytes, kPage));
    std::lock_guard lock(mutex_);
    auto& spare = spare_[size];
    void* p = nullptr;
    if (!spare.empty()) {
      p = spare.back();
      spare.pop_back();
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&p, kPage, size) == 0, "rsx: no ", size, " bytes of host memory");
      blocks_[p] = size;
      stats_.allocated_bytes.increase(size);
    }
    live_ += 1;
    return p;
  }
  void release(void* p) {
    std::lock_guard lock(mutex_);
    spare_[blocks_.at(p)].push_back(p);
    live_ -= 1;
  }
  bool contains(const void* p) {
    std::lock_guard lock(mutex_);
    auto it = blocks_.upper_bound(const_cast<void*>(p));
    if (it == blocks_.begin()) return false;
    --it;
    return static_cast<const char*>(p) < static_cast<char*>(it->first) + it->second;
  }
  void trim() {
    std::lock_guard lock(mutex_);
    for (auto& [size, list] : spare_) {
      for (void* p : list) {
        stats_.allocated_bytes.decrease(size);
        blocks_.erase(p);
        free(p);
      }
      list.clear();
    }
  }
  at::HostStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> blocks_;  // every block, live or spare
  std::unordered_map<size_t, std::vector<void*>> spare_;
  at::HostStats stats_;
  size_t live_ = 0;
};

Pool& pool() {
  static auto* p = new Pool();  // tensors may outlive static destructors
  return *p;
}

void release(void* p) { pool().release(p); }

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, c10::Device(at::kCPU)};
    void* p = pool().allocate(nbytes);
    return {p, p, &release, c10::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dst, const void* src, std::size_t n) const override { std::memcpy(dst, src, n); }
  bool record_event(void*, void*, c10::Stream) override { return true; }  // uploads copy before they return
  void empty_cache() override { pool().trim(); }
  at::HostStats get_stats() override { return pool().stats(); }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

at::HostAllocator* host_allocator() {
  static auto* a = new PinnedAllocator();
  return a;
}

bool is_pinned(const void* p) { return p && pool().contains(p); }

}  // namespace rsx
