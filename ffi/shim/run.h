// The boxed kernel behind every recordable operator, and its two ways out.
#pragma once
#include "infer.h"

namespace rsx {

// Records the call on top of the stack and replaces its arguments by its results.
void run(OpInfo& op, Stack& stack);

// Runs the call at once on CPU copies (waits for its inputs), counted with its reason.
void run_on_cpu(OpInfo& op, Stack& stack, uint32_t reason);

// Convenience for the unboxed kernels.
template <class... Args>
IValue call(OpInfo& op, Args&&... args) {
  Stack stack{IValue(std::forward<Args>(args))...};
  run(op, stack);
  return stack.empty() ? IValue() : std::move(stack[0]);
}

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(OpInfo* op) : op_(op) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) { run(*op_, *stack); }

 private:
  OpInfo* op_;
};

}  // namespace rsx
