// Recurrent cells. PyTorch sends PrivateUse1 to the fused forms, for which libtorch has no CPU kernel.
#include "op_info.h"

namespace rsx {
namespace {

at::Tensor plus_bias(at::Tensor x, const IValue& bias) {
  return present(bias) ? x + bias.toTensor() : x;
}

// (input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> hy, cy, workspace
void lstm(Stack& s, const Seed&) {
  const auto gates = plus_bias(plus_bias(s[0].toTensor() + s[1].toTensor(), s[3]), s[4]).chunk(4, 1);
  const auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  const auto cy = f * s[2].toTensor() + i * g;
  s = Stack{o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

// (grad_hy?, grad_cy?, cx, cy, workspace, has_bias) -> grad_gates, grad_cx, grad_bias
void lstm_backward(Stack& s, const Seed&) {
  const auto cx = s[2].toTensor(), cy = s[3].toTensor();
  const auto gates = s[4].toTensor().chunk(4, 1);
  const auto &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const auto grad_hy = present(s[0]) ? s[0].toTensor() : at::zeros_like(cy);
  const auto tanh_cy = cy.tanh();
  auto grad_c = grad_hy * o * (1 - tanh_cy * tanh_cy);
  if (present(s[1])) grad_c = grad_c + s[1].toTensor();
  const auto grad_gates = at::cat({grad_c * g * (1 - i) * i, grad_c * cx * (1 - f) * f, grad_c * i * (1 - g * g),
                                   grad_hy * tanh_cy * (1 - o) * o},
                                  1);
  s = Stack{grad_gates, grad_c * f, s[5].toBool() ? grad_gates.sum(0) : at::Tensor()};
}

// (input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> hy, workspace
void gru(Stack& s, const Seed&) {
  const auto x = plus_bias(s[0].toTensor(), s[3]).chunk(3, 1), h = plus_bias(s[1].toTensor(), s[4]).chunk(3, 1);
  const auto hx = s[2].toTensor();
  const auto r = (x[0] + h[0]).sigmoid(), z = (x[1] + h[1]).sigmoid(), n = (x[2] + r * h[2]).tanh();
  s = Stack{n + z * (hx - n), at::cat({r, z, n, hx, h[2]}, 1)};
}

// (grad_hy, workspace, has_bias) -> grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias, grad_hidden_bias
void gru_backward(Stack& s, const Seed&) {
  const auto grad = s[0].toTensor();
  const auto w = s[1].toTensor().chunk(5, 1);
  const bool bias = s[2].toBool();
  const auto &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  const auto grad_n = grad * (1 - z) * (1 - n * n), grad_z = grad * (hx - n) * (1 - z) * z;
  const auto grad_r = grad_n * hn * (1 - r) * r;
  const auto grad_x = at::cat({grad_r, grad_z, grad_n}, 1), grad_h = at::cat({grad_r, grad_z, grad_n * r}, 1);
  s = Stack{grad_x, grad_h, grad * z, bias ? grad_x.sum(0) : at::Tensor(), bias ? grad_h.sum(0) : at::Tensor()};
}

}  // namespace

EagerKernel cell_kernel(const std::string& name) {
  if (name == "aten::_thnn_fused_lstm_cell") return &lstm;
  if (name == "aten::_thnn_fused_lstm_cell_backward_impl") return &lstm_backward;
  if (name == "aten::_thnn_fused_gru_cell") return &gru;
  if (name == "aten::_thnn_fused_gru_cell_backward") return &gru_backward;
  return nullptr;
}

}  // namespace rsx
