// Linear layers: one op and one autograd node each way.
//
// PyTorch makes a linear layer of a transpose, a product and (for three dimensions and more) views, and its gradient of
// as many again: some ten ops a layer that a lazy device would record only to fold them into the same three products. A
// backend may implement `linear` and `linear_backward` instead, as MPS does; autograd has a formula for the pair, but
// none for forward-mode derivatives. So only plain calls take this way. What else there is (forward mode, functorch,
// modes and subclasses in Python, torch.compile's tracing, mistakes) is decomposed as on any other device.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include "ops.h"

namespace torch::autograd {
void deleteNode(Node* node);  // where nodes are std::shared_ptr, to free long chains without recursion
}

namespace rsx {
namespace {

using torch::autograd::generated::LinearBackward0;

// Nodes are counted by themselves from torch 2.13 on, by std::shared_ptr before.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Pointer>
Pointer owned(LinearBackward0* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(node, &torch::autograd::deleteNode);
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

// An ordinary tensor of this device, outside of any transformation.
bool is_plain(const at::Tensor& t) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kUsual({DispatchKey::PrivateUse1, DispatchKey::AutogradPrivateUse1,
                                        DispatchKey::ADInplaceOrView, DispatchKey::AutocastPrivateUse1});
  return (t.key_set() | kUsual) == kUsual && is_rsx(t) && !torch::autograd::isFwGradDefined(t);
}

bool takes(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kModes({DispatchKey::Python, DispatchKey::FuncTorchDynamicLayerFrontMode});
  // First: tensors that are traced may have no sizes to look at.
  if (!is_plain(x) || !is_plain(w) || (b.defined() && !is_plain(b))) return false;
  if (c10::impl::tls_local_dispatch_key_set().included_.has_any(kModes)) return false;
  const auto type = x.scalar_type();
  // The gradient of a weight that is a view is laid out in other ways.
  return at::isFloatingType(type) && w.scalar_type() == type && x.dim() >= 2 && w.dim() == 2 && w.stride(1) == 1 &&
         w.stride(0) == w.size(1) && x.size(-1) == w.size(1) && x.numel() > 0 && w.numel() > 0 &&
         (!b.defined() || (b.dim() == 1 && b.size(0) == w.size(0) && b.scalar_type() == type));
}

const at::Tensor& bias_of(const std::optional<at::Tensor>& b) {
  static const at::Tensor none;
  return b ? *b : none;
}

at::Tensor record(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b) {
  static auto* op = op_info("aten::linear");
  return call(*op, x, w, b).toTensor();
}

// Without autograd (inference mode).
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b) {
  return takes(x, w, bias_of(b)) ? record(x, w, b) : at::native::linear(x, w, b);
}

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b) {
  using namespace torch::autograd;
  const auto& bias = bias_of(b);
  if (!takes(x, w, bias)) return at::native::linear(x, w, b);
  NodePointer history;
  if (compute_requires_grad(x, w, bias)) {
    // Gradients of the bias alone keep neither operand, which the formula wants.
    if (!compute_requires_grad(x, w)) return at::native::linear(x, w, b);
    auto* node = new LinearBackward0();
    history = owned<NodePointer>(node);
    node->set_next_edges(collect_next_edges(x, w, bias));
    // As the product's node does: an operand is kept only for the other one's gradient. In its place stands the other.
    node->input_ = SavedVariable(node->should_compute_output(1) ? x : w, false);
    node->weight_ = SavedVariable(node->should_compute_output(0) ? w : x, false);
  }
  at::Tensor y;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    y = record(x, w, b);
  }
  if (history) set_history(y, history);
  return y;
}

// (self, grad_output, weight, output_mask). On CPU tensors, as autograd's formulas of the decomposed layer have it.
void backward(Stack& s, const Seed&) {
  const auto x = s[0].toTensor(), grad = s[1].toTensor(), w = s[2].toTensor();
  const auto mask = s[3].toBoolList();
  const auto rows = grad.reshape({-1, grad.size(-1)});
  at::Tensor gx, gw, gb;
  if (mask[0]) {
    auto sizes = grad.sizes().vec();
    sizes.back() = w.size(1);
    gx = rows.mm(w).reshape(sizes);
  }
  if (mask[1]) gw = rows.t().mm(x.reshape({-1, x.size(-1)}));
  if (mask[2]) gb = rows.sum(0);
  s = Stack{gx, gw, gb};
}

}  // namespace

std::array<at::Tensor, 3> linear_backward_layout(const IValue* args) {
  const auto &x = args[0].toTensor(), &grad = args[1].toTensor(), &w = args[2].toTensor();
  const auto mask = args[3].toBoolList();
  const auto options = grad.options().device(at::kMeta);
  std::array<at::Tensor, 3> out;
  if (mask[0]) {
    auto sizes = grad.sizes().vec();
    sizes.back() = w.size(1);
    out[0] = at::empty(sizes, options);
  }
  if (mask[1]) out[1] = at::empty({grad.size(-1), x.size(-1)}, options);
  if (mask[2]) out[2] = at::empty({grad.size(-1)}, options);
  return out;
}

EagerKernel linear_kernel(const std::string& name) { return name == "aten::linear_backward" ? &backward : nullptr; }

void register_linear(Registrar& r, torch::Library& autograd) {
  r.impl("linear", &linear);
  autograd.impl("linear", &linear_autograd);
}

}  // namespace rsx
