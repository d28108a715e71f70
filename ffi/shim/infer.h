// The results' metadata of a call whose signature is not known yet.
#pragma once
#include "encode.h"

namespace rsx {

// Results of linear_backward, as meta tensors.
std::array<at::Tensor, 3> linear_backward_layout(const IValue* args);  // linear.cpp

// True while a structured op's metadata is being inferred on this thread: our kernels then only
// return metadata.
bool inferring();
// Thrown by our kernels when inference meets an op that is not the plain `.out` step.
struct InferBail {};

// Inserts the signature, or throws the user's error in PyTorch's words. True: an out= argument got its
// shape instead, so encode and look up again.
bool infer(OpInfo& op, Stack& stack, const Encoder& record);

// Raises what the CPU kernel says of such arguments, if it refuses them.
void ask_cpu_kernel(const OpInfo& op, const IValue* args);

// PyTorch's own complaint about tensors on several devices.
[[noreturn]] void raise_foreign(OpInfo& op, Stack& stack);

// Applies f to every tensor of a value.
template <class F>
IValue map_tensors(const IValue& v, F&& f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<at::Tensor> l;
    for (const auto& e : v.toListRef()) l.push_back(f(e.toTensor()));
    return l;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> l;
    for (const auto& e : v.toListRef())
      l.push_back(e.isNone() ? std::nullopt : std::optional<at::Tensor>(f(e.toTensor())));
    return l;
  }
  return v;
}

}  // namespace rsx
