#include "status.h"

namespace rsx {

void raise(int32_t status) {
  std::string text = rsx_take_error();
  switch (status) {
    case RSX_ERR_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case RSX_ERR_INDEX:
      TORCH_CHECK_INDEX(false, text);
    case RSX_ERR_UNSUPPORTED:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    default:
      TORCH_CHECK(false, text);
  }
}

void raise_bad_fork() {
  // The words of torch.cuda, which users search for.
  TORCH_CHECK(false,
              "Cannot re-initialize rsx in forked subprocess. To use rsx with multiprocessing, you must use the "
              "'spawn' start method");
}

}  // namespace rsx
