#include "run.h"

#include "generator.h"

namespace rsx {
namespace {

// While a structured op's metadata is inferred, its `.out` step arrives here: results are the
// arguments it would have written.
void run_inferring(const OpInfo& op, Stack& stack) {
  const auto base = stack.size() - op.nargs;
  c10::SmallVector<IValue, 4> returned;
  for (uint32_t r = 0; r < op.nrets; ++r) {
    if (op.ret_arg[r] < 0) throw InferBail();
    returned.push_back(stack[base + op.ret_arg[r]]);
  }
  stack.resize(base);
  for (auto& v : returned) stack.push_back(std::move(v));
}

// CPU tensors as indices are legal PyTorch (`x[cpu_index]`): they become device tensors.
void upload_indices(OpInfo& op, Stack& stack) {
  const auto base = stack.size() - op.nargs;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (op.writes_arg(i) || !stack[base + i].isList()) continue;
    stack[base + i] = map_tensors(stack[base + i], [](const at::Tensor& t) {
      return t.defined() && t.device().is_cpu() ? upload(t) : t;
    });
  }
}

// Computes pending conjugations and negations of what is read. False: one is written to.
bool resolve_lazy_bits(OpInfo& op, Stack& stack) {
  const auto base = stack.size() - op.nargs;
  bool written = false;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    stack[base + i] = map_tensors(stack[base + i], [&](const at::Tensor& t) {
      if (!t.defined() || !is_rsx(t) || !(t.is_conj() || t.is_neg())) return t;
      written |= op.writes_arg(i);
      return op.writes_arg(i) ? t : t.resolve_conj().resolve_neg();
    });
  }
  return !written;
}

at::Tensor result(const RsxOut& o, RsxStorage* storage) {
  const auto nbytes = static_cast<int64_t>(o.nbytes);
  return adopt(storage, nbytes, {o.sizes, o.rank}, {o.strides, o.rank}, static_cast<at::ScalarType>(o.dtype));
}

// Replaces the arguments by the results. Takes the references in `fresh`.
void finish(const OpInfo& op, Stack& stack, const RsxResults& results, RsxStorage** fresh) {
  const auto base = stack.size() - op.nargs;
  if (op.nrets == 1 && op.ret_arg[0] >= 0) {
    if (op.ret_arg[0] > 0) stack[base] = std::move(stack[base + op.ret_arg[0]]);
    stack.resize(base + 1);
    return;
  }
  c10::SmallVector<IValue, 4> returned;
  const RsxOut* out = results.outs;
  const auto tensor = [&](const RsxOut& o) { return o.kind == RSX_OUT_UNDEF ? at::Tensor() : result(o, *fresh++); };
  for (uint32_t r = 0; r < op.nrets; ++r) {
    if (op.ret_arg[r] >= 0) {
      returned.push_back(stack[base + op.ret_arg[r]]);
      continue;
    }
    const auto& o = *out++;
    if (o.kind == RSX_OUT_LIST) {
      c10::List<at::Tensor> l;
      l.reserve(o.nbytes);
      for (uint64_t k = 0; k < o.nbytes; ++k) l.push_back(tensor(*out++));
      returned.emplace_back(std::move(l));
    } else if (o.kind == RSX_OUT_INT) {
      returned.emplace_back(static_cast<int64_t>(o.nbytes));
    } else {
      returned.emplace_back(tensor(o));
    }
  }
  stack.resize(base);
  for (auto& v : returned) stack.push_back(std::move(v));
}

// Whether the call was recorded; false: it must be run on the CPU, for `op.reason`.
bool record(OpInfo& op, Stack& stack, const Seed* seed) {
  const auto base = stack.size() - op.nargs;
  constexpr size_t kInline = 16;
  RsxStorage* few[kInline];
  std::vector<RsxStorage*> many;
  // Two passes at most for each of: host indices, a missing signature, resized out= tensors.
  for (int tries = 0; tries < 6; ++tries) {
    Encoder e;
    e.op(op, &stack[base]);
    if (C10_UNLIKELY(e.foreign)) {
      if (!op.host_indices || tries > 0) raise_foreign(op, stack);
      upload_indices(op, stack);
      continue;
    }
    if (C10_UNLIKELY(e.lazy_bits)) {
      if (!resolve_lazy_bits(op, stack)) return false;
      continue;
    }
    if (seed) e.seed(*seed);
    const auto r = e.record(op);
    RsxResults results{};
    auto status = check(rsx_record(&r, few, kInline, &results));
    if (C10_UNLIKELY(status == RSX_REC_MISS)) {
      if (infer(op, stack, e)) continue;
      status = check(rsx_record(&r, few, kInline, &results));
    }
    if (C10_UNLIKELY(status == RSX_REC_IMMEDIATE)) return false;
    TORCH_INTERNAL_ASSERT(status == RSX_REC_DONE, "rsx: ", op.name, " was not recorded");
    RsxStorage** fresh = few;
    if (C10_UNLIKELY(results.nfresh > kInline)) {
      many.resize(results.nfresh);
      rsx_take_fresh(fresh = many.data());
    }
    finish(op, stack, results, fresh);
    return true;
  }
  TORCH_INTERNAL_ASSERT(false, "rsx: ", op.name, " does not settle");
}

// Predicted results depend on the default element type (`int / int`), which is not in the record.
void follow_default_dtype() {
  static std::atomic<uint16_t> known{static_cast<uint16_t>(at::kFloat)};
  const auto now = static_cast<uint16_t>(c10::get_default_dtype_as_scalartype());
  if (C10_LIKELY(known.load(std::memory_order_relaxed) == now)) return;
  known = now;
  rsx_sig_forget();
}

}  // namespace

void run(OpInfo& op, Stack& stack) {
  if (C10_UNLIKELY(inferring())) return run_inferring(op, stack);
  check_fork();
  follow_default_dtype();
  if (C10_UNLIKELY(op.immediate)) return run_on_cpu(op, stack, op.reason);
  Seed seed;
  if (C10_UNLIKELY(op.random && !is_distribution(op, &stack[stack.size() - op.nargs])))
    ask_cpu_kernel(op, &stack[stack.size() - op.nargs]);
  // Drawn once per call, before any retry, so that known and new signatures draw the same numbers.
  if (C10_UNLIKELY(op.random)) seed = draw(op, &stack[stack.size() - op.nargs]);
  if (!record(op, stack, op.random ? &seed : nullptr)) run_on_cpu(op, stack, op.reason);
}

}  // namespace rsx
