// Nanoseconds per call of the recording path, for benches/ (the table in facts.md A).
#include <chrono>
#include <functional>

#include <torch/library.h>

#include "run.h"

namespace rsx {
namespace {

double best_of(int64_t n, const std::function<void()>& f) {
  double best = 1e18;
  for (int round = 0; round < 7; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < n; ++i) f();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / static_cast<double>(n));
    check(rsx_synchronize(RSX_CAUSE_SYNCHRONIZE));
  }
  return best;
}

// What a boxed kernel costs that does nothing: the yardstick for recording.
void nothing(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  stack->resize(stack->size() - op.schema().arguments().size() + 1);
}

using Nothing = at::Tensor&(at::Tensor&, const at::Tensor&, const at::Scalar&);
c10::TypedOperatorHandle<Nothing> nothing_op() {
  static const auto library = [] {
    auto l = std::make_unique<torch::Library>(torch::Library::DEF, "rsx_bench", std::nullopt, __FILE__, __LINE__);
    l->def("nothing_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)");
    l->impl("nothing_", torch::dispatch(kKey, torch::CppFunction::makeFromBoxedFunction<&nothing>()));
    return l;
  }();
  return c10::Dispatcher::singleton().findSchemaOrThrow("rsx_bench::nothing_", "").typed<Nothing>();
}

// "rsx:add" or "cpu:add"; names ending in "below" skip autograd's dispatch keys.
double bench(const std::string& what, int64_t n) {
  const auto colon = what.find(':');
  const auto device = what.substr(0, colon) == "cpu" ? c10::Device(at::kCPU) : kDevice;
  const auto name = what.substr(colon + 1);
  const auto a = at::ones({1}, at::TensorOptions().device(device)), b = at::ones_like(a);
  at::NoGradGuard no_grad;
  std::optional<at::AutoDispatchBelowADInplaceOrView> below;
  if (name.size() > 5 && name.compare(name.size() - 5, 5, "below") == 0) below.emplace();
  if (name.compare(0, 7, "nothing") == 0) {
    const auto op = nothing_op();
    auto self = a;
    const at::Scalar one(1);
    return best_of(n, [&] { op.call(self, b, one); });
  }
  if (name.compare(0, 4, "add_") == 0) return best_of(n, [&] { a.add_(b); });
  if (name.compare(0, 3, "add") == 0) return best_of(n, [&] { auto t = a.add(b); });
  if (name.compare(0, 4, "view") == 0) return best_of(n, [&] { auto t = a.view({1, 1}); });
  if (name == "empty") return best_of(n, [&] { auto t = at::empty({1}, a.options()); });
  if (name == "storage") return best_of(n, [&] { rsx_storage_release(rsx_storage_new(4)); });
  auto* op = op_info("aten::add_", "Tensor");
  const IValue args[] = {a, b, at::Scalar(1)};
  if (name == "encode") {
    return best_of(n, [&] {
      Encoder e;
      e.op(*op, args);
      asm volatile("" ::"r"(e.words.data()) : "memory");
    });
  }
  if (name == "record") {
    Encoder e;
    e.op(*op, args);
    const auto r = e.record(*op);
    RsxStorage* fresh[1];
    RsxResults results{};
    a.add_(b);
    return best_of(n, [&] { check(rsx_record(&r, fresh, 1, &results)); });
  }
  return -1;
}

}  // namespace
}  // namespace rsx

extern "C" double rsx_cpp_bench(const char* what, int64_t n) {
  try {
    return rsx::bench(what, n);
  } catch (...) {
    return -1;
  }
}
