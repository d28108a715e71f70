// Running one op with libtorch's CPU kernels.
#pragma once
#include "op_info.h"

namespace rsx {

// Everything above the CPU backend is off: autograd, autocast, functorch, Python modes.
class HostScope {
 public:
  HostScope();

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// Replaces the arguments on the stack (CPU tensors) by the results.
void run_host_kernel(const OpInfo& op, Stack& stack, const Seed& seed);

// The same with libtorch's own kernel, even where there is one of ours.
void run_libtorch_kernel(const OpInfo& op, Stack& stack, const Seed& seed);

}  // namespace rsx
