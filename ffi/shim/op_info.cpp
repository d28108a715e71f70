#include "op_info.h"

#include <deque>
#include <shared_mutex>

namespace rsx {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::deque<OpInfo> infos;  // stable addresses, index = Rust's number
  std::unordered_map<std::string, OpInfo*> by_name;
};
Table& table() {
  static auto* t = new Table();  // never destroyed: the executor may outlive static destructors
  return *t;
}

bool starts_with(const std::string& s, const char* prefix) { return s.compare(0, strlen(prefix), prefix) == 0; }

bool is_number(const c10::Argument& arg) {
  auto type = arg.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

// Running statistics are written although the schema does not say so, and only in training.
uint64_t batch_norm_writes(const IValue* args) { return args[5].toBool() ? 0b11000 : 0; }
// Gradients (argument 1) are written only when there is a scale to take out of them.
uint64_t fused_adam_writes(const IValue* args) { return args[13].isNone() ? 0b11101 : 0b11111; }
uint64_t fused_sgd_writes(const IValue* args) { return args[10].isNone() ? 0b101 : 0b111; }
uint64_t fused_adagrad_writes(const IValue* args) { return args[9].isNone() ? 0b1101 : 0b1111; }

void special_cases(OpInfo& op) {
  const auto& n = op.name;
  if (n == "aten::native_batch_norm") {
    op.dynamic_writes = batch_norm_writes;
    op.writes = 0b11000;
  }
  if (starts_with(n, "aten::_fused_adam_") || starts_with(n, "aten::_fused_adamw_")) {
    op.dynamic_writes = fused_adam_writes;
    op.rule = Rule::kInPlace;
  }
  if (starts_with(n, "aten::_fused_sgd_")) {
    op.dynamic_writes = fused_sgd_writes;
    op.rule = Rule::kInPlace;
  }
  if (starts_with(n, "aten::_fused_adagrad_")) {
    op.dynamic_writes = fused_adagrad_writes;
    op.rule = Rule::kInPlace;
  }
  if (starts_with(n, "aten::_amp_")) op.rule = Rule::kInPlace;
  if (starts_with(n, "rsx::while_loop")) {
    op.rule = Rule::kCarried;
    op.immediate = false;
  }
  if (n == "aten::linear_backward") op.rule = Rule::kLinear;
  if (n == "aten::copy_") op.rule = Rule::kCopy;
  if (starts_with(n, "aten::_foreach_")) op.rule = Rule::kForeach;
  static const std::unordered_set<std::string> in_place = {
      "aten::zero_", "aten::fill_.Scalar", "aten::normal_", "aten::uniform_", "aten::random_", "aten::random_.from",
      "aten::random_.to", "aten::exponential_", "aten::bernoulli_.float"};
  if (in_place.count(n)) op.rule = Rule::kInPlace;
  op.host_indices = starts_with(n, "aten::index.") || starts_with(n, "aten::index_put") ||
                    starts_with(n, "aten::_index_put_impl_") || starts_with(n, "aten::_unsafe_index");
}

uint32_t encoding_of(const std::string& op, const std::string& argument) {
  // arange's result has its size before it is recorded (ops_factory.cpp): where it starts is data.
  if (op == "aten::arange.start_out" && (argument == "start" || argument == "end")) return RSX_ENCODE_DATA;
  return rsx_op_encoding(op.data(), op.size(), argument.data(), argument.size());
}

void read_arguments(OpInfo& op, const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& arg = schema.arguments()[i];
    if (arg.alias_info() && arg.alias_info()->isWrite()) op.writes |= uint64_t{1} << i;
    op.encoding.push_back(is_number(arg) ? encoding_of(op.name, arg.name()) : RSX_ENCODE_STRUCTURE);
    if (arg.type()->str().find("Generator") != std::string::npos) op.random = true;
  }
}

void read_returns(OpInfo& op, const c10::FunctionSchema& schema) {
  const auto is_tensor = [](const c10::TypePtr& t) { return t->kind() == c10::TypeKind::TensorType; };
  for (const auto& ret : schema.returns()) {
    const auto& type = ret.type();
    const bool list = type->kind() == c10::TypeKind::ListType && is_tensor(type->containedType(0));
    // A single result that is no tensor is a host value (`equal`). Among tensors an int is a size.
    if (!list && !is_tensor(type) && schema.returns().size() == 1) op.immediate = true;
    op.ret_list.push_back(list);
    int8_t from = -1;
    if (ret.alias_info() && ret.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size() && from < 0; ++i) {
        auto* info = schema.arguments()[i].alias_info();
        if (info && *info == *ret.alias_info()) from = static_cast<int8_t>(i);
      }
    }
    op.ret_arg.push_back(from);
  }
}

void fill(OpInfo& op) {
  const auto& schema = op.handle.schema();
  op.nargs = schema.arguments().size();
  op.nrets = schema.returns().size();
  TORCH_CHECK(op.nargs <= 64, "rsx: ", op.name, " has more than 64 arguments");
  read_arguments(op, schema);
  read_returns(op, schema);
  // Indexing is dynamic only by boolean masks, which ops_index.cpp turns into positions first.
  const bool indexing = starts_with(op.name, "aten::index.") || starts_with(op.name, "aten::_unsafe_index.");
  if (op.handle.hasTag(at::Tag::dynamic_output_shape) && !indexing) {
    op.immediate = true;
    op.reason = RSX_WHY_DYNAMIC_SHAPE;
  } else if (op.handle.hasTag(at::Tag::data_dependent_output)) {
    op.immediate = true;
    op.reason = RSX_WHY_HOST_RESULT;
  } else if (!starts_with(op.name, "aten::") && !starts_with(op.name, "prims::")) {
    // A torch.library op may be Python code: it runs where it is called, under the caller's GIL.
    op.immediate = true;
    op.reason = RSX_WHY_PYTHON;
  }
  if (op.handle.hasTag(at::Tag::nondeterministic_seeded)) op.random = true;
  if (starts_with(op.name, "aten::_scaled_dot_product")) op.random = false;  // chosen without dropout only
  op.structured = op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  special_cases(op);
  op.eager = eager_kernel(op.name);
}

}  // namespace

OpInfo* op_info(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  std::string name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  auto& t = table();
  std::unique_lock lock(t.mutex);
  if (auto it = t.by_name.find(name); it != t.by_name.end()) return it->second;
  auto& op = t.infos.emplace_back(handle);
  op.name = name;
  fill(op);
  bool written[64];
  for (uint32_t i = 0; i < op.nargs; ++i) written[i] = op.writes_arg(i);
  std::string args;
  for (const auto& a : schema.arguments()) args += a.name() + ",";
  op.id = rsx_op_register(name.data(), name.size(), args.data(), args.size(), written, op.nargs, op.ret_arg.data(),
                          op.ret_list.data(), op.nrets, &op.hash);
  TORCH_INTERNAL_ASSERT(op.id + 1 == t.infos.size(), "rsx: operators are numbered by the shim alone");
  t.by_name[name] = &op;
  return &op;
}

OpInfo* op_info(const char* name, const char* overload) {
  return op_info(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

OpInfo* op_info(uint32_t id) {
  auto& t = table();
  std::shared_lock lock(t.mutex);
  return &t.infos.at(id);
}

size_t op_count() {
  auto& t = table();
  std::shared_lock lock(t.mutex);
  return t.infos.size();
}

}  // namespace rsx
