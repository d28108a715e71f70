// Failures of the Rust side as PyTorch's exceptions.
#pragma once
#include "rsx_abi.h"

namespace rsx {

[[noreturn]] void raise(int32_t status);

// The status of a call that has succeeded, or the exception it stands for.
inline int32_t check(int32_t status) {
  if (__builtin_expect(status < 0, 0)) raise(status);
  return status;
}

// Every use of the device in a forked child ends here: the executor's threads do not exist there.
inline void check_fork();
[[noreturn]] void raise_bad_fork();
inline void check_fork() {
  if (__builtin_expect(rsx_bad_fork(), 0)) raise_bad_fork();
}

}  // namespace rsx
