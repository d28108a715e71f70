// Ops whose results PyTorch lays out in another way on the CPU than on other devices.
#include <ATen/MemoryOverlap.h>

#include "ops.h"

namespace rsx {
namespace {

// The CPU's gradient of a channels_last input is channels_last; elsewhere it is contiguous.
at::Tensor group_norm(const at::Tensor& input, int64_t groups, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double eps, bool cudnn) {
  auto x = input;
  const auto format = input.suggest_memory_format();
  if (format != at::MemoryFormat::Contiguous && input.requires_grad() && at::GradMode::is_enabled()) {
    x = at::alias(input);  // a hook on `input` would outlive this call
    x.register_hook([format](const at::Tensor& grad) { return grad.defined() ? grad.contiguous(format) : grad; });
  }
  return at::native::group_norm(x, groups, weight, bias, eps, cudnn);
}

// `x.select_scatter(..)` of an `x` with gaps has them too: PyTorch's composite, a copy of the storage and a copy into a
// view of that. Otherwise it is one op.
struct ScatterKernel final : c10::OperatorKernel {
  explicit ScatterKernel(OpInfo* op) : op_(op) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    const auto& self = (*stack)[stack->size() - op_->nargs].toTensor();
    if (inferring() || !is_rsx(self) || self.is_non_overlapping_and_dense() ||
        at::has_internal_overlap(self) == at::MemOverlap::Yes)
      return run(*op_, *stack);
    op_->handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::IPU), stack);  // any backend without kernels
  }

 private:
  OpInfo* op_;
};

}  // namespace

void register_layouts(Registrar& r, torch::Library& autograd) {
  r.impl("group_norm", &group_norm);
  autograd.impl("group_norm", &group_norm);
  for (const char* name : {"select_scatter", "slice_scatter", "diagonal_scatter"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), "");
    r.boxed(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ScatterKernel>(op_info(op))));
  }
}

}  // namespace rsx
