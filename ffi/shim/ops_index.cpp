// Boolean masks as indices. Their positions are known only on the host (a wait, counted as a dynamic
// shape), unless the whole assignment is a masked fill.
#include <ATen/native/IndexingUtils.h>

#include "ops.h"

namespace rsx {
namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

bool is_mask(const at::Tensor& t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; }

bool has_mask(const IValue& indices) {
  for (const auto& e : indices.toListRef())
    if (!e.isNone() && e.toTensor().defined() && is_mask(e.toTensor())) return true;
  return false;
}

// Masks replaced by the positions of their true elements.
IValue positions(const at::Tensor& self, const IValue& indices) {
  Indices device;
  for (const auto& e : indices.toListRef()) {
    if (e.isNone() || !e.toTensor().defined()) device.push_back(std::nullopt);
    else device.push_back(is_rsx(e.toTensor()) ? e.toTensor() : upload(e.toTensor()));
  }
  Indices expanded;
  for (auto& t : at::native::expandTensors(self, device))
    expanded.push_back(t.defined() ? std::optional<at::Tensor>(std::move(t)) : std::nullopt);
  return expanded;
}

// `self[.., mask, ..] = one value` needs no positions. Null: something else.
std::optional<at::Tensor> fill_mask(const at::Tensor& self, const IValue& indices, const at::Tensor& value) {
  if (value.numel() != 1) return std::nullopt;
  std::optional<at::Tensor> mask;
  int64_t before = 0, after = 0;
  for (const auto& e : indices.toListRef()) {
    if (e.isNone() || !e.toTensor().defined()) {
      ++(mask ? after : before);
    } else if (mask || !is_mask(e.toTensor()) || !is_rsx(e.toTensor())) {
      return std::nullopt;
    } else {
      mask = e.toTensor();
    }
  }
  if (!mask || before + mask->dim() + after > self.dim()) return std::nullopt;
  for (int64_t i = 0; i < mask->dim(); ++i)
    if (mask->size(i) != self.size(before + i)) return std::nullopt;  // expandTensors words the error
  auto m = mask->scalar_type() == at::kBool ? *mask : mask->to(at::kBool);
  for (int64_t i = before + mask->dim(); i < self.dim(); ++i) m = m.unsqueeze(-1);
  return m;
}

// Argument 1 is the list of indices; in-place forms take the value at 2 and `accumulate` at 3.
struct IndexKernel final : c10::OperatorKernel {
  explicit IndexKernel(OpInfo* op) : op_(op), assigns_(op->name.find("index_put") != std::string::npos) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    if (C10_LIKELY(inferring() || !has_mask((*stack)[stack->size() - op_->nargs + 1]))) return run(*op_, *stack);
    const auto base = stack->size() - op_->nargs;
    const auto self = (*stack)[base].toTensor();
    if (assigns_ && op_->writes_arg(0) && !(*stack)[base + 3].toBool()) {
      const auto value = (*stack)[base + 2].toTensor();
      if (auto mask = fill_mask(self, (*stack)[base + 1], value)) {
        self.masked_fill_(*mask, value.reshape({}).to(self.scalar_type()));
        stack->resize(base + 1);
        return;
      }
    }
    (*stack)[base + 1] = positions(self, (*stack)[base + 1]);
    run(*op_, *stack);
  }

 private:
  OpInfo* op_;
  bool assigns_;
};

}  // namespace

void register_indexing(Registrar& r) {
  for (const char* name : {"index.Tensor", "index_put_", "index_put", "_index_put_impl_"}) {
    const std::string full = name;
    const auto dot = full.find('.');
    auto* op = op_info(("aten::" + full.substr(0, dot)).c_str(), dot == std::string::npos ? "" : full.substr(dot + 1).c_str());
    r.boxed(full, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<IndexKernel>(op)));
  }
}

}  // namespace rsx
