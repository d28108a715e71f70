// Backward passes of norms. What a norm keeps for them has the type that PyTorch's device-independent meta functions say,
// float for half precision; CPU kernels want that of their own forward passes.
#include "eager.h"

namespace rsx {
namespace {

// Casts the kept statistics at `first` and the place behind it to the type of the first operand there is.
void with_statistics(Stack& s, const char* name, size_t first, std::initializer_list<size_t> operands) {
  for (const size_t i : operands) {
    if (!present(s[i])) continue;
    const auto type = s[i].toTensor().scalar_type();
    for (const size_t k : {first, first + 1})
      if (present(s[k])) s[k] = s[k].toTensor().to(type);
    break;
  }
  run_libtorch_kernel(*op_info(name), s, Seed{});
}

// (grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
void layer_norm_backward(Stack& s, const Seed&) { with_statistics(s, "aten::native_layer_norm_backward", 3, {5, 1}); }

// (grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask)
void batch_norm_backward(Stack& s, const Seed&) {
  with_statistics(s, "aten::native_batch_norm_backward", 5, {2, 3, 1});
}

}  // namespace

EagerKernel norm_kernel(const std::string& name) {
  if (name == "aten::native_layer_norm_backward") return &layer_norm_backward;
  if (name == "aten::native_batch_norm_backward") return &batch_norm_backward;
  return nullptr;
}

}  // namespace rsx
