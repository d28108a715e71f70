// "Pinned" host memory. The CPU device needs no pinning; what users rely on is that `is_pinned()` is
// true, views of it included, and that batches do not fault fresh pages: blocks are kept and reused.
#pragma once

namespace rsx {

at::HostAllocator* host_allocator();
bool is_pinned(const void* p);

}  // namespace rsx
