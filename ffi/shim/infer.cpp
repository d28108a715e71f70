// Order (facts.md A): rules without PyTorch, then the structured op's C++ meta function on shadow
// tensors (about 1.5 us), then the Meta kernel (often Python: 70-1200 us), else run at once.
#include "infer.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/op_registration/adaption.h>

#include "eager.h"
#include "shadow.h"

namespace rsx {
namespace {

thread_local bool t_inferring = false;
struct InferScope {
  InferScope() { t_inferring = true; }
  ~InferScope() { t_inferring = false; }
};

// Results of one signature.
class Results {
 public:
  void tensor(const at::Tensor& t) {
    auto& o = outs_.emplace_back();
    if (!t.defined()) {
      o.kind = RSX_OUT_UNDEF;
      return;
    }
    // A result that a kernel would return expanded or overlapping gets a dense layout of its own.
    const auto strides = t.is_non_overlapping_and_dense() ? t.strides().vec() : at::infer_dense_strides(t.sizes(), t.strides());
    fits_ &= strides.size() <= RSX_MAX_RANK;
    if (!fits_) return;
    std::copy(t.sizes().begin(), t.sizes().end(), o.sizes);
    std::copy(strides.begin(), strides.end(), o.strides);
    o.rank = static_cast<uint8_t>(t.dim());
    o.dtype = static_cast<uint8_t>(t.scalar_type());
    o.nbytes = nbytes_of(t.sizes(), strides, t.scalar_type());
  }
  void list(const IValue& v) {
    const auto items = v.toListRef();
    other(RSX_OUT_LIST, items.size());
    for (const auto& e : items) tensor(e.toTensor());
  }
  void integer(int64_t value) { other(RSX_OUT_INT, static_cast<uint64_t>(value)); }

  void insert(const OpInfo& op, const Encoder& e, uint32_t flags = 0) const {
    if (!fits_) flags |= RSX_SIG_IMMEDIATE;  // a rank that records cannot hold
    rsx_sig_insert(e.words.data(), e.words.size(), op.id, outs_.data(), outs_.size(), flags);
  }

 private:
  void other(RsxOutKind kind, uint64_t value) {
    auto& o = outs_.emplace_back();
    o.kind = kind;
    o.nbytes = value;
  }

  std::vector<RsxOut> outs_;
  bool fits_ = true;
};

void insert_immediate(OpInfo& op, const Encoder& e, uint32_t reason) {
  op.reason = reason;
  Results().insert(op, e, RSX_SIG_IMMEDIATE);
}

bool names_one_of(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (name.find(part) != std::string::npos) return true;
  return false;
}

// Whether a written argument overlaps itself, or another one in part. Rules and Meta kernels do not look: such a call
// is left to the CPU kernel, which refuses it, or warns and does it, as for CPU tensors.
bool overlaps(const OpInfo& op, const IValue* args) {
  // These refuse an operand that is the very tensor they write, too.
  const bool strict = names_one_of(op.name, {"index_", "scatter", "gather", "masked_"});
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (!op.writes_arg(i) || !args[i].isTensor()) continue;
    const auto& written = args[i].toTensor();
    if (!written.defined() || !is_rsx(written)) continue;
    if (at::has_internal_overlap(written) == at::MemOverlap::Yes) return true;
    for (uint32_t j = 0; j < op.nargs; ++j) {
      if (j == i || !args[j].isTensor()) continue;
      const auto& other = args[j].toTensor();
      if (!other.defined() || !is_rsx(other)) continue;
      const auto status = at::get_overlap_status(written, other);
      if (status == at::MemOverlapStatus::Partial || (strict && status == at::MemOverlapStatus::Full)) return true;
    }
  }
  return false;
}

// Whether the element types of the operands may be a mistake that the meta function does not see. What ops of the
// autograd engine are given is rsx's own.
bool has_doubtful_types(const OpInfo& op, const IValue* args) {
  constexpr int64_t kMostBytes = 64 << 20;  // asking costs the operands' memory and the kernel's time, once
  if (op.rule == Rule::kCopy || op.rule == Rule::kForeach || op.rule == Rule::kCarried) return false;
  if (names_one_of(op.name, {"_backward"})) return false;
  std::optional<at::ScalarType> floating, any;
  bool floats_differ = false, types_differ = false;
  int64_t bytes = 0;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    map_tensors(args[i], [&](const at::Tensor& t) {
      if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
      const auto type = t.scalar_type();
      const bool is_floating = at::isFloatingType(type) || at::isComplexType(type);
      floats_differ |= is_floating && floating.value_or(type) != type;
      types_differ |= any.value_or(type) != type;
      if (is_floating) floating = type;
      any = type;
      bytes += t.numel() * static_cast<int64_t>(t.element_size());
      return t;
    });
  }
  if (bytes > kMostBytes || !any) return false;
  if (!floating) return true;  // integers alone, perhaps in an op for floating point only
  if (op.rule == Rule::kInPlace) return false;
  // Selections say what each operand has to be.
  if (names_one_of(op.name, {"masked_fill", "masked_scatter", "index_put", "bitwise"})) return true;
  if (floats_differ && !op.handle.hasTag(at::Tag::pointwise)) return true;
  // These take operands of one element type, whatever it is.
  return types_differ && names_one_of(op.name, {"mm", "mv", "dot", "conv", "addr", "linear", "norm"});
}

// What a convolution demands of sizes, strides and paddings: asked of a batch of none, which computes nothing.
bool accepts_convolution(const OpInfo& op, const IValue* args) {
  const auto& input = args[0].toTensor();
  if (input.dim() == 0) return false;
  // What only the kernels look at.
  const auto stride = args[3].toIntVector(), dilation = args[5].toIntVector(), more = args[7].toIntVector();
  for (const auto d : dilation)
    if (d <= 0) return false;
  const auto at_dim = [](const std::vector<int64_t>& v, size_t k) { return v[std::min(k, v.size() - 1)]; };
  for (size_t k = 0; args[6].toBool() && k < more.size() && !stride.empty() && !dilation.empty(); ++k)
    if (more[k] >= std::max(at_dim(stride, k), at_dim(dilation, k))) return false;
  const auto has_none = [](const at::Tensor& t) {  // the batch aside
    const auto sizes = t.sizes();
    return !sizes.empty() && std::find(sizes.begin() + 1, sizes.end(), 0) != sizes.end();
  };
  HostScope scope;
  const auto result = [&](bool of_none) {
    Stack host;
    for (uint32_t i = 0; i < op.nargs; ++i) {
      host.push_back(map_tensors(args[i], [&](const at::Tensor& t) {
        if (!t.defined()) return t;
        auto sizes = t.sizes().vec();
        if (i == 0 && of_none) sizes[0] = 0;
        return at::zeros(sizes, at::TensorOptions().dtype(t.scalar_type()));
      }));
    }
    run_host_kernel(op, host, Seed{});
    return host[0].toTensor();
  };
  try {
    // Without an image to convolve, or to give, the whole batch computes nothing either, and may be refused.
    if (has_none(result(true)) || has_none(input)) result(false);
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

// Sizes that PyTorch's meta function accepts and the CPU kernel refuses.
bool has_doubtful_sizes(const OpInfo& op, const IValue* args) {
  const auto tensor = [&](uint32_t i) -> const at::Tensor& { return args[i].toTensor(); };
  const auto is = [&](const char* name) { return op.name == name; };
  if (is("aten::convolution")) return !accepts_convolution(op, args);
  if (is("aten::addmm") || is("aten::addmm_") || is("aten::addmm.out")) {
    return tensor(1).dim() == 2 && tensor(2).dim() == 2 &&
           !at::is_expandable_to(tensor(0).sizes(), {tensor(1).size(0), tensor(2).size(1)});
  }
  if (is("aten::index_select")) return tensor(2).dim() > 1;
  if (is("aten::max") || is("aten::min")) return tensor(0).numel() == 0;
  if (is("aten::multinomial")) {
    return tensor(0).dim() > 0 && !args[2].toBool() && args[1].toInt() > tensor(0).size(-1);
  }
  return false;
}

}  // namespace

// The CPU kernel is asked once for a signature, so that a mistake is raised in its words at the user's line. Its operands
// are zeros, which are good indices; ones in elementwise ops, where integers may be divided by them.
void ask_cpu_kernel(const OpInfo& op, const IValue* args) {
  const bool elementwise = op.handle.hasTag(at::Tag::pointwise) || op.name.find("div") != std::string::npos;
  const auto zeros = [&](const at::Tensor& t) {
    if (!t.defined() || !is_rsx(t)) return t;
    at::Tensor host(at::detail::empty_strided_cpu(t.sizes(), t.strides(), t.scalar_type()));
    return host.fill_(elementwise ? 1 : 0);
  };
  HostScope scope;
  Stack host;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (args[i].isDevice()) host.emplace_back(c10::Device(at::kCPU));
    else host.push_back(map_tensors(args[i], zeros));
  }
  // Our own random kernels take any type.
  if (op.random) run_libtorch_kernel(op, host, Seed{1, 1});
  else run_host_kernel(op, host, Seed{});
}

namespace {

void collect(const OpInfo& op, const Stack& returned, Results& results) {
  for (uint32_t r = 0; r < op.nrets; ++r) {
    if (op.ret_arg[r] >= 0) continue;
    const auto& v = returned[r];
    if (op.ret_list[r]) results.list(v);
    else if (v.isTensor()) results.tensor(v.toTensor());
    else results.integer(v.isInt() ? v.toInt() : 0);
  }
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

// A multi-tensor op over lists whose entries agree in layout: a floating result is like list 0.
bool foreach_is_plain(const OpInfo& op, const IValue* args) {
  if (!args[0].isTensorList() || op.name.find("norm") != std::string::npos || op.name.find("max") == 15) return false;
  const auto first = args[0].toListRef();
  for (const auto& e : first) {
    const auto& t = e.toTensor();
    if (!is_rsx(t) || !at::isFloatingType(t.scalar_type()) || !t.is_non_overlapping_and_dense()) return false;
  }
  for (uint32_t i = 1; i < op.nargs; ++i) {
    if (args[i].isComplexDouble()) return false;
    if (args[i].isTensor() && (!args[i].toTensor().defined() || args[i].toTensor().dim() > 0 ||
                               !at::isFloatingType(args[i].toTensor().scalar_type())))
      return false;
    if (args[i].isList() && args[i].toListRef().size() != first.size()) return false;
    if (!args[i].isTensorList()) continue;
    const auto other = args[i].toListRef();
    for (size_t k = 0; k < first.size(); ++k)
      if (!same_layout(first[k].toTensor(), other[k].toTensor())) return false;
  }
  return true;
}

bool by_rule(const OpInfo& op, const IValue* args, const Encoder& e) {
  Results results;
  switch (op.rule) {
    case Rule::kAsk:
      return false;
    case Rule::kInPlace:
      break;
    case Rule::kCopy:
      if (args[0].toTensor().sizes() != args[1].toTensor().sizes()) return false;
      break;
    case Rule::kForeach:
      if (op.nrets > 1 || !foreach_is_plain(op, args)) return false;
      if (op.nrets == 1) results.list(args[0]);
      break;
    case Rule::kCarried:
      results.list(args[0]);
      break;
    case Rule::kLinear:
      for (const auto& t : linear_backward_layout(args)) results.tensor(t);
      break;
  }
  results.insert(op, e);
  return true;
}

// The op's own C++ meta function, through the kernel that any backend without kernels has (IPU's
// table entry): PyTorch's messages, device names and overlap checks, and no Python.
bool run_structured(OpInfo& op, const IValue* args, Stack& stack) {
  Shadows shadows(kKey);
  for (uint32_t i = 0; i < op.nargs; ++i)
    stack.push_back(map_tensors(args[i], [&](const at::Tensor& t) { return shadows.of(t); }));
  try {
    InferScope scope;
    at::AutoDispatchBelowADInplaceOrView below;
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::IPU), &stack);
  } catch (const InferBail&) {
    op.structured = false;  // not a plain structured kernel (select_backward): Meta from now on
    return false;
  }
  return true;
}

// Whether a message named the meta device; it then names ours.
bool rename_device(std::string& text) {
  bool renamed = false;
  for (const char* phrase : {"on meta", "device meta", "meta device", "meta:0"}) {
    for (size_t at; (at = text.find(phrase)) != std::string::npos; renamed = true)
      text.replace(text.find("meta", at), text.compare(at, 6, "meta:0") == 0 ? 6 : 4, "rsx:0");
  }
  return renamed;
}

// What the CPU kernel's result looks like where PyTorch's meta function says something else.
at::Tensor laid_out(const at::Tensor& t, at::MemoryFormat format) {
  const int64_t rank = format == at::MemoryFormat::ChannelsLast ? 4 : format == at::MemoryFormat::ChannelsLast3d ? 5 : t.dim();
  const auto options = t.options().device(at::kMeta);
  return at::empty(t.sizes(), rank == t.dim() ? options.memory_format(format) : options);
}

bool is_iterated(const OpInfo& op) {
  if (names_one_of(op.name, {"clone", "copy"})) return false;
  return op.handle.hasTag(at::Tag::pointwise) || names_one_of(op.name, {"aten::complex", "aten::polar"});
}

// An elementwise op's result as TensorIterator lays it out.
at::Tensor iterated(const OpInfo& op, const IValue* args, const at::Tensor& t) {
  Shadows shadows(c10::DispatchKey::Meta);
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(t.scalar_type(), at::kMeta).add_owned_output(at::Tensor());
  bool any = false;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (op.writes_arg(i) || !present(args[i]) || !is_rsx(args[i].toTensor())) continue;
    config.add_owned_const_input(shadows.of(args[i].toTensor()));
    any = true;
  }
  if (!any) return t;
  const auto iter = config.build();
  return iter.output().sizes() == t.sizes() ? at::Tensor(iter.output()) : t;
}

// Strides of the first result are the CPU kernel's.
void lay_out(const OpInfo& op, const IValue* args, Stack& returned) {
  // The argument whose channels_last layout it keeps; any other layout gives a contiguous result.
  static const std::unordered_map<std::string, uint32_t> like = {
      {"aten::roll", 0},
      {"aten::reflection_pad2d", 0},
      {"aten::replication_pad2d", 0},
      {"aten::reflection_pad2d_backward", 1},
      {"aten::replication_pad2d_backward", 1},
      {"aten::native_batch_norm", 0},
      {"aten::_native_batch_norm_legit", 0},
      {"aten::_native_batch_norm_legit.no_stats", 0},
      {"aten::_native_batch_norm_legit_no_training", 0},
      {"aten::native_batch_norm_backward", 1},
      {"aten::native_group_norm_backward", 1},
      {"aten::pixel_shuffle", 0},
      {"aten::pixel_unshuffle", 0},
      {"aten::channel_shuffle", 0},
      {"aten::native_channel_shuffle", 0},
  };
  if (returned.empty() || !present(returned[0]) || op.ret_arg[0] >= 0) return;
  const auto result = returned[0].toTensor();
  if (op.name == "aten::convolution") {
    auto format = args[0].toTensor().suggest_memory_format();
    if (format == at::MemoryFormat::Contiguous) format = args[1].toTensor().suggest_memory_format();
    if (format != at::MemoryFormat::Contiguous) returned[0] = laid_out(result, format);
  } else if (const auto it = like.find(op.name); it != like.end()) {
    returned[0] = laid_out(result, args[it->second].toTensor().suggest_memory_format());
  } else if (op.name == "aten::log_sigmoid_forward" || op.name == "aten::nll_loss2d_forward") {
    returned[0] = laid_out(result, at::MemoryFormat::Contiguous);
  } else if (op.nrets == 1 && !op.structured && is_iterated(op)) {
    returned[0] = iterated(op, args, result);
  }
}

bool by_meta(OpInfo& op, Stack& stack, const Encoder& e) {
  const auto* args = &stack[stack.size() - op.nargs];
  Stack meta;
  Shadows shadows(c10::DispatchKey::Meta);
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (args[i].isDevice()) meta.emplace_back(c10::Device(at::kMeta));
    else if (args[i].isGenerator()) meta.emplace_back();
    else meta.push_back(map_tensors(args[i], [&](const at::Tensor& t) { return shadows.of(t); }));
  }
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
  } catch (const c10::NotImplementedError&) {
    insert_immediate(op, e, RSX_WHY_NO_META);
    return false;
  } catch (const c10::Error& err) {
    std::string text = err.what_without_backtrace();
    if (!rename_device(text)) throw;  // keeps IndexError, ValueError, ...
    TORCH_CHECK(false, text);
  } catch (const std::exception&) {
    // A Python meta kernel raised. The CPU kernel decides whether the call is wrong, in its own words.
    insert_immediate(op, e, RSX_WHY_META_FAILED);
    return false;
  }
  // Written arguments that the kernel has resized: out= tensors.
  bool resized = false;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (!op.writes_arg(i) || !args[i].isTensor()) continue;
    const auto& t = args[i].toTensor();
    if (!t.defined() || !is_rsx(t)) continue;
    const auto m = shadows.of(t);
    if (m.sizes() == t.sizes() && m.strides() == t.strides()) continue;
    for (uint32_t j = 0; j < op.nargs; ++j) {
      if (j == i || !args[j].isTensor() || !args[j].toTensor().is_same(t)) continue;
      insert_immediate(op, e, RSX_WHY_OVERLAP);  // an operand is not resized: the CPU kernel refuses that
      return false;
    }
    const auto strided = is_iterated(op) ? iterated(op, args, m) : m;
    set_geometry(t, m.sizes(), strided.strides());
    resized = true;
  }
  if (resized) return true;
  lay_out(op, args, meta);
  Results results;
  collect(op, meta, results);
  results.insert(op, e);
  return false;
}

}  // namespace

bool inferring() { return t_inferring; }

bool infer(OpInfo& op, Stack& stack, const Encoder& record) {
  const auto* args = &stack[stack.size() - op.nargs];
  if (overlaps(op, args)) {
    insert_immediate(op, record, RSX_WHY_OVERLAP);
    return false;
  }
  if (has_doubtful_types(op, args) || has_doubtful_sizes(op, args)) ask_cpu_kernel(op, args);
  if (by_rule(op, args, record)) return false;
  if (Stack returned; op.structured && run_structured(op, args, returned)) {
    lay_out(op, args, returned);
    Results results;
    collect(op, returned, results);
    results.insert(op, record);
    return false;
  }
  if (!op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    insert_immediate(op, record, RSX_WHY_NO_META);
    return false;
  }
  return by_meta(op, stack, record);
}

void raise_foreign(OpInfo& op, Stack& stack) {
  const auto* args = &stack[stack.size() - op.nargs];
  if (Stack ignored; op.structured) run_structured(op, args, ignored);  // TensorIterator names both devices
  for (uint32_t i = 0; i < op.nargs; ++i) {
    map_tensors(args[i], [&](const at::Tensor& t) -> at::Tensor {
      if (!t.defined() || (is_rsx(t) && t.layout() == at::kStrided)) return t;
      if (t.layout() != at::kStrided)
        TORCH_CHECK_NOT_IMPLEMENTED(false, "Could not run '", op.name, "' with arguments of layout ", t.layout(),
                                    " on device rsx: only strided tensors are supported");
      if (t.dim() > 0 || op.writes_arg(i)) {
        const auto& argument = op.handle.schema().arguments()[i].name();
        c10::impl::common_device_check_failure(kDevice, t, op.name.c_str(), argument.c_str());
      }
      return t;
    });
  }
  TORCH_CHECK(false, "rsx: ", op.name, " got tensors that it cannot use");
}

}  // namespace rsx
