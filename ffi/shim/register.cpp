// Registers the device with PyTorch, once, when the Python module is loaded.
#include "generator.h"
#include "ops.h"

namespace rsx {

void register_profiler();  // profiler.cpp
EagerKernel cell_kernel(const std::string& name);
EagerKernel linear_kernel(const std::string& name);
EagerKernel norm_kernel(const std::string& name);
EagerKernel random_kernel(const std::string& name);

EagerKernel eager_kernel(const std::string& name) {
  if (auto* k = cell_kernel(name)) return k;
  if (auto* k = linear_kernel(name)) return k;
  if (auto* k = norm_kernel(name)) return k;
  return random_kernel(name);
}

namespace {

torch::Library& library(torch::Library::Kind kind, const char* ns, std::optional<c10::DispatchKey> key) {
  return *new torch::Library(kind, ns, key, __FILE__, __LINE__);  // registrations last as long as the process
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& r : schema.returns())
    if (r.alias_info() && !r.alias_info()->isWrite()) return true;
  return false;
}

// Composites that must not run: they end in a stub that throws, cost many nodes for one, or round to a narrow type after
// each of their steps (silu's and mish's gradients, which have an autograd formula of their own besides).
bool overridden(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::convolution", "aten::convolution_backward", "aten::native_layer_norm", "aten::native_group_norm",
      "aten::embedding", "aten::zero_", "aten::fill_.Scalar", "aten::masked_fill_.Scalar", "aten::mul.Scalar",
      "aten::mul_.Scalar", "aten::linear_backward", "aten::silu_backward", "aten::mish_backward"};
  return names.count(name) || name.compare(0, 14, "aten::_foreach") == 0;
}

// Precedence: a direct registration beats every composite, so only ops that really belong to a backend
// get one. Implicit composites would lose their autograd formula; views and in-place views are
// metadata that the default kernels get right, and their copies are a view and a clone.
bool wants_kernel(const c10::OperatorHandle& op, const std::string& name) {
  const auto has = [&](c10::DispatchKey k) { return op.hasKernelForDispatchKey(k); };
  if (overridden(name)) return true;
  if (has(c10::DispatchKey::CompositeImplicitAutograd)) return false;
  if (op.hasTag(at::Tag::inplace_view) || returns_view(op.schema())) return false;
  if (op.hasTag(at::Tag::view_copy) && name.find("scatter") == std::string::npos) return false;
  if (has(c10::DispatchKey::CompositeExplicitAutograd)) return false;
  return has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) || has(c10::DispatchKey::CPU) ||
         has(c10::DispatchKey::Meta);
}

void register_boxed(Registrar& r) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& n : dispatcher.getAllOpNames()) {
    if (n.name.compare(0, 6, "aten::") != 0) continue;
    const auto name = n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
    const auto op = dispatcher.findSchema(n);
    if (r.done(name) || !op || !wants_kernel(*op, name)) continue;
    r.boxed(name.substr(6), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op_info(*op))));
  }
}

// Everything else that reaches the backend: ops of other namespaces, ops registered later.
void backend_fallback(const c10::OperatorHandle& op, Stack* stack) { run(*op_info(op), *stack); }

// Ends the condition or the body of a while_loop, recorded on this thread as a function of `args`.
int64_t loop_part(const std::vector<at::Tensor>& args, const std::vector<at::Tensor>& outs) {
  const auto handles = [](const std::vector<at::Tensor>& tensors) {
    std::vector<RsxStorage*> of;
    for (const auto& t : tensors) of.push_back(handle_of(t));
    return of;
  };
  const auto a = handles(args), o = handles(outs);
  return check(rsx_loop_part(a.data(), a.size(), o.data(), o.size()));
}

// Loops under fake tensors: results are like what is carried.
std::vector<at::Tensor> loop_meta(const std::vector<at::Tensor>& carried, const std::vector<at::Tensor>&, int64_t) {
  std::vector<at::Tensor> outs;
  for (const auto& t : carried) outs.push_back(at::empty_like(t));
  return outs;
}

void register_all() {
  register_storage();
  register_device();
  auto& aten = library(torch::Library::IMPL, "aten", kKey);
  Registrar r(aten);
  register_factories(r);
  register_views(r);
  register_copies(r);
  register_storages(r);
  register_indexing(r);
  register_attention(r);
  auto& autograd = library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1);
  register_linear(r, autograd);
  register_layouts(r, autograd);
  register_boxed(r);
  library(torch::Library::IMPL, "_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&backend_fallback>());
  constexpr auto autocast = c10::DispatchKey::AutocastPrivateUse1;
  library(torch::Library::IMPL, "_", autocast).fallback(torch::CppFunction::makeFallthrough());
  register_autocast(library(torch::Library::IMPL, "aten", autocast));
  auto& own = library(torch::Library::DEF, "rsx", std::nullopt);
  own.def("default_generator() -> Generator?", [] { return std::optional<at::Generator>(default_generator()); });
  own.def("has_materializer() -> bool", [] { return kHasMaterializer; });
  own.def("materialize(Tensor self) -> ()", [](const at::Tensor& t) { materialize(storage_of(t.unsafeGetTensorImpl())); });
  own.def("while_loop(Tensor[] carried, Tensor[] additional, int loop) -> Tensor[]");
  own.def("while_loop_kept(Tensor[] carried, Tensor[] additional, int loop) -> Tensor[]");
  own.def("while_loop_back(Tensor[] carried, Tensor[] additional, int loop) -> Tensor[]");
  for (const char* name : {"while_loop", "while_loop_kept", "while_loop_back"})
    own.impl(name, c10::DispatchKey::Meta, TORCH_FN(loop_meta));
  own.def("loop_part(Tensor[] args, Tensor[] outs) -> int", &loop_part);
  register_replay(own);
  register_profiler();
}

}  // namespace
}  // namespace rsx

extern "C" char* rsx_cpp_init(void) {
  try {
    rsx::register_all();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  }
}
