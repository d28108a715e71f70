// scaled_dot_product_attention: which form is recorded.
#include "ops.h"

namespace rsx {
namespace {

// The CPU's own choice, which looks at kinds, sizes and strides only: its flash kernel, which is one node that the
// compiler lowers in flash form, or matmuls and softmax (dropout, other ranks, a mask with gradient, rows that are not
// contiguous). What is refused and how results are laid out is the CPU's then.
int64_t choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
               double dropout, bool causal, std::optional<double> scale, bool grouped) {
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), q, k, v, mask, dropout, causal,
                                                 scale, grouped);
}

}  // namespace
}  // namespace rsx

namespace at::native {
// The stub's registration macros want this namespace.
static void set_sdp_choice(fused_sdp_choice_fn f) { _fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(f); }
}  // namespace at::native

namespace rsx {

void register_attention(Registrar& r) {
  at::native::set_sdp_choice(&choose);
  r.impl("_fused_sdp_choice", &choose);
}

}  // namespace rsx
