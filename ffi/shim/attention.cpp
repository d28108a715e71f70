// scaled_dot_product_attention: which form is recorded, and its kernels for the eager engine.
#include "ops.h"

namespace rsx {
namespace {

// Fused attention is one node (forward) that the compiler lowers in flash form. What it does not cover
// (dropout, grouped heads, other ranks, a mask with gradient) decomposes into matmuls and softmax.
int64_t choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
               double dropout, bool causal, std::optional<double>, bool grouped) {
  const auto type = q.scalar_type();
  const bool fused = dropout == 0 && !grouped && q.dim() == 4 && k.dim() == 4 && v.dim() == 4 &&
                     at::isFloatingType(type) && k.scalar_type() == type && v.scalar_type() == type &&
                     q.size(1) == k.size(1) && k.size(1) == v.size(1) && q.size(0) == k.size(0) &&
                     k.size(0) == v.size(0) && q.size(3) == k.size(3) && k.size(2) == v.size(2) &&
                     !(mask && mask->defined() &&
                       (mask->requires_grad() ||
                        !at::is_expandable_to(mask->sizes(), {q.size(0), q.size(1), q.size(2), k.size(2)})));
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

int64_t fused_sdp_choice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                         bool grouped) {
  return choose(q, k, v, mask, dropout, causal, scale, grouped);
}

std::optional<at::Tensor> optional(const IValue& v) {
  if (v.isNone() || !v.toTensor().defined()) return std::nullopt;
  return v.toTensor();
}
std::optional<double> optional_scale(const IValue& v) { return v.isNone() ? std::nullopt : std::optional(v.toDouble()); }

// libtorch's flash kernel takes these; its backward wants logsumexp in the query's own precision for f64.
bool runs_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask) {
  return q.scalar_type() != at::kDouble && q.size(3) == v.size(3) && q.numel() > 0 && v.numel() > 0 &&
         q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1 &&
         (!mask || (mask->scalar_type() == q.scalar_type() && (mask->dim() == 2 || mask->dim() == 4)));
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const std::optional<at::Tensor>& mask, bool causal,
                  std::optional<double> scale) {
  auto s = at::matmul(q, k.transpose(-2, -1)) * scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  if (mask) {
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    s = mask->scalar_type() == at::kBool ? s.masked_fill(mask->logical_not(), kNever) : s + *mask;
  }
  if (causal) {
    const auto visible = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).tril();
    s = s.masked_fill(visible.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return s;
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale)
void forward(Stack& s, const Seed&) {
  const auto q = s[0].toTensor(), k = s[1].toTensor(), v = s[2].toTensor();
  const auto mask = optional(s[3]);
  const bool causal = s[5].toBool();
  const auto scale = optional_scale(s[7]);
  at::Tensor out, lse;
  if (runs_flash(q, k, v, mask)) {
    std::tie(out, lse) = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask, scale);
  } else {
    const auto x = scores(q, k, mask, causal, scale);
    lse = x.logsumexp(-1).to(at::kFloat);
    out = at::matmul(at::_safe_softmax(x, -1), v);  // 0 where no key is seen
  }
  const auto none = at::zeros({}, at::kLong);
  const int64_t max_q = q.size(2), max_k = k.size(2);
  s = Stack{out, lse, at::Tensor(), at::Tensor(), max_q, max_k, none, none.clone(), at::Tensor()};
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
//  dropout_p, is_causal, philox_seed, philox_offset, scale)
void backward(Stack& s, const Seed&) {
  const auto grad = s[0].toTensor(), q = s[1].toTensor(), k = s[2].toTensor(), v = s[3].toTensor();
  const auto mask = optional(s[4]);
  const bool causal = s[13].toBool();
  const auto scale = optional_scale(s[16]);
  if (runs_flash(q, k, v, mask) && grad.stride(3) == 1) {
    auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, s[6].toTensor(), s[7].toTensor(), 0.0, causal, mask, scale);
    s = Stack{gq, gk, gv, at::Tensor()};
    return;
  }
  const auto p = at::_safe_softmax(scores(q, k, mask, causal, scale), -1);
  const auto dp = at::matmul(grad, v.transpose(-2, -1));
  const auto ds = p * (dp - (dp * p).sum(-1, true)) * scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  s = Stack{at::matmul(ds, k), at::matmul(ds.transpose(-2, -1), q), at::matmul(p.transpose(-2, -1), grad), at::Tensor()};
}

}  // namespace

EagerKernel attention_kernel(const std::string& name) {
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable") return &forward;
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable_backward") return &backward;
  return nullptr;
}

}  // namespace rsx

namespace at::native {
// The stub's registration macros want this namespace.
static void set_sdp_choice(fused_sdp_choice_fn f) { _fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(f); }
}  // namespace at::native

namespace rsx {

void register_attention(Registrar& r) {
  at::native::set_sdp_choice(&choose);
  r.impl("_fused_sdp_choice", &fused_sdp_choice);
}

}  // namespace rsx
