// The eager engine: tier 0 and call nodes, on the executor thread. It never needs the GIL.
#include "eager.h"

#include "decode.h"

namespace rsx {
namespace {

c10::impl::LocalDispatchKeySet host_keys() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                   c10::autocast_dispatch_keyset | c10::python_ks | c10::functorch_transforms_ks |
                   c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::PreDispatch});
  keys.included_ = keys.included_ - keys.excluded_;
  return keys;
}

// Random ops without a kernel of ours draw from libtorch's generator, keyed by their own seed:
// still a function of (seed, offset) alone.
at::Generator host_generator(const Seed& s) {
  uint64_t mixed = s.seed ^ (s.offset + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
  mixed ^= mixed >> 31;
  return at::detail::createCPUGenerator(mixed);
}

// Hands results over to Rust: their own memory when the layout is the predicted one, else a copy.
class Outputs {
 public:
  explicit Outputs(const RsxEval& eval) : eval_(eval), out_(eval.outs) {}

  void put(const IValue& v, bool list) {
    if (!list) return tensor(v.isTensor() ? v.toTensor() : at::Tensor());
    const auto items = v.toListRef();
    TORCH_CHECK(items.size() == out_->nbytes, "returned ", items.size(), " tensors, expected ",
                out_->nbytes);
    ++out_;
    for (const auto& e : items) tensor(e.toTensor());
  }

 private:
  void tensor(const at::Tensor& t) {
    const auto& o = *out_++;
    if (o.kind != RSX_OUT_TENSOR) return;
    const auto index = fresh_++;
    const c10::IntArrayRef sizes(o.sizes, o.rank), strides(o.strides, o.rank);
    const auto dtype = static_cast<at::ScalarType>(o.dtype);
    if (adoptable(t, sizes, strides, dtype)) return give(index, t, o.nbytes);
    auto* dst = rsx_eager_allocate(eval_.ctx, index, o.nbytes);
    TORCH_CHECK_WITH(OutOfMemoryError, dst, "rsx out of memory: ", o.nbytes, " bytes for a result");
    fill(at::from_blob(dst, sizes, strides, at::TensorOptions().dtype(dtype).device(at::kCPU)), t);
  }
  static bool adoptable(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
    // The memory must be the result's alone: not an argument's (from_blob has no allocator), not shared.
    return t.defined() && t.sizes() == sizes && t.strides() == strides && t.scalar_type() == dtype &&
           t.storage_offset() == 0 && !t.is_conj() && !t.is_neg() && t.storage().allocator() != nullptr &&
           t.storage().use_count() == 1 && t.use_count() == 1;
  }
  static void fill(const at::Tensor& dst, const at::Tensor& t) {
    if (!t.defined() || (t.numel() == 0 && dst.numel() != 0)) {
      dst.zero_();  // a result the kernel leaves empty or undefined where Meta promises values nobody reads
      return;
    }
    TORCH_CHECK(dst.sizes() == t.sizes(), "the CPU kernel returned shape ", t.sizes(), ", PyTorch's meta kernel promised ",
                dst.sizes());
    dst.copy_(t);
  }
  void give(uint32_t index, const at::Tensor& t, uint64_t nbytes) {
    auto* owner = new c10::Storage(t.storage());
    rsx_eager_adopt(eval_.ctx, index, owner->mutable_data(), nbytes, owner,
                    [](void* p) { delete static_cast<c10::Storage*>(p); });
  }

  const RsxEval& eval_;
  const RsxOut* out_;
  uint32_t fresh_ = 0;
};

void eval(const RsxEval& e) {
  const auto& op = *op_info(e.op);
  HostScope scope;
  c10::InferenceMode no_versions(false);
  Decoder decoder(e);
  Stack stack;
  stack.reserve(op.nargs);
  for (uint32_t i = 0; i < op.nargs; ++i) stack.push_back(decoder.next());
  run_host_kernel(op, stack, op.random ? decoder.seed() : Seed{});
  Outputs outputs(e);
  for (uint32_t r = 0; r < op.nrets; ++r) {
    if (op.ret_arg[r] >= 0) continue;
    IValue v = std::move(stack[r]);  // the stack must not share the memory that is handed over
    outputs.put(v, op.ret_list[r]);
  }
}

}  // namespace

HostScope::HostScope() : guard_(host_keys()) {}

void run_host_kernel(const OpInfo& op, Stack& stack, const Seed& seed) {
  if (op.eager) return op.eager(stack, seed);
  run_libtorch_kernel(op, stack, seed);
}

void run_libtorch_kernel(const OpInfo& op, Stack& stack, const Seed& seed) {
  if (op.random) {
    const auto& args = op.handle.schema().arguments();
    for (uint32_t i = 0; i < op.nargs; ++i)
      if (args[i].type()->str().find("Generator") != std::string::npos) stack[i] = host_generator(seed);
  }
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

}  // namespace rsx

extern "C" int32_t rsx_cpp_eval(const RsxEval* e, char** text) {
  const auto fail = [&](int32_t status, const char* what) {
    *text = strdup(what);  // PyTorch's own words; who raises it names the op
    return status;
  };
  try {
    rsx::eval(*e);
    return RSX_OK;
  } catch (const c10::OutOfMemoryError& err) {
    return fail(RSX_ERR_MEMORY, err.what_without_backtrace());
  } catch (const c10::IndexError& err) {
    return fail(RSX_ERR_INDEX, err.what_without_backtrace());
  } catch (const c10::NotImplementedError& err) {
    return fail(RSX_ERR_UNSUPPORTED, err.what_without_backtrace());
  } catch (const c10::Error& err) {
    return fail(RSX_ERR_USER, err.what_without_backtrace());
  } catch (const std::exception& err) {
    return fail(RSX_ERR_USER, err.what());
  } catch (...) {
    return fail(RSX_ERR_INTERNAL, "unknown exception");
  }
}

extern "C" void rsx_cpp_free(char* text) { free(text); }
