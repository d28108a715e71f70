// torch.autocast("rsx"): the same op lists as CUDA's.
#include "ops.h"

namespace at::autocast {
namespace {
void register_lists(torch::Library& m) {  // the macros name the library `m` and live in this namespace
#define RSX_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define RSX_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define RSX_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define RSX_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(RSX_LOWER)
  AT_FORALL_FP32(RSX_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(RSX_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(RSX_PROMOTE)
}
}  // namespace
}  // namespace at::autocast

namespace rsx {

void register_autocast(torch::Library& lib) { at::autocast::register_lists(lib); }

}  // namespace rsx
