// Views only make a new geometry: PyTorch's own code does it, nothing is recorded.
#include "ops.h"

namespace rsx {
namespace {

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}
at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }
at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

}  // namespace

void register_views(Registrar& r) {
  r.impl("as_strided", &as_strided);
  r.impl("view", &view);
  r.impl("_reshape_alias", &reshape_alias);
  r.impl("unfold", &unfold);
  r.impl("view_as_real", &view_as_real);
  r.impl("view_as_complex", &view_as_complex);
}

}  // namespace rsx
