// Random ops for the eager engine, drawn from rsx's Philox: the same numbers as compiled programs draw.
#include "op_info.h"

namespace rsx {
namespace {

// The type in which Rust draws for a tensor of `dtype`.
at::ScalarType drawn_type(uint32_t kind, at::ScalarType dtype) {
  if (kind == RSX_RANDOM_BERNOULLI) return at::kBool;
  if (kind == RSX_RANDOM_INT) return at::kLong;
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Fills in row-major order of the logical elements, whatever the strides.
void fill(const at::Tensor& t, uint32_t kind, const Seed& s, double a = 0, double b = 1) {
  const auto type = drawn_type(kind, t.scalar_type());
  const bool direct = t.scalar_type() == type && t.is_contiguous();
  auto dst = direct ? t : at::empty(t.sizes(), t.options().dtype(type));
  const auto n = static_cast<uint64_t>(dst.numel());
  const auto code = rsx_philox_fill(kind, static_cast<int32_t>(type), dst.mutable_data_ptr(), n, s.seed, s.offset, a, b);
  TORCH_CHECK(code == 0, "random numbers of type ", type, " are not supported");
  if (!direct) t.copy_(dst);
}

double as_double(int64_t bits) {
  double d;
  std::memcpy(&d, &bits, sizeof d);
  return d;
}
void fill_int(const at::Tensor& t, const Seed& s, int64_t from, int64_t to) {
  fill(t, RSX_RANDOM_INT, s, as_double(from), as_double(to));
}

// One past the largest value that random_() may give: every integer the type represents exactly.
int64_t upper_bound(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return (int64_t{1} << 53) + 1;
    case at::kFloat: return (int64_t{1} << 24) + 1;
    case at::kHalf: return (int64_t{1} << 11) + 1;
    case at::kBFloat16: return (int64_t{1} << 8) + 1;
    case at::kBool: return 2;
    case at::kByte: return 256;
    case at::kChar: return 128;
    case at::kShort: return int64_t{1} << 15;
    case at::kInt: return int64_t{1} << 31;
    default: return std::numeric_limits<int64_t>::max();
  }
}

void uniform_(Stack& s, const Seed& seed) {
  fill(s[0].toTensor(), RSX_RANDOM_UNIFORM, seed, s[1].toDouble(), s[2].toDouble());
}
void normal_(Stack& s, const Seed& seed) {
  fill(s[0].toTensor(), RSX_RANDOM_NORMAL, seed, s[1].toDouble(), s[2].toDouble());
}
void exponential_(Stack& s, const Seed& seed) { fill(s[0].toTensor(), RSX_RANDOM_EXPONENTIAL, seed, s[1].toDouble()); }
void bernoulli_(Stack& s, const Seed& seed) { fill(s[0].toTensor(), RSX_RANDOM_BERNOULLI, seed, s[1].toDouble()); }
void random_(Stack& s, const Seed& seed) {
  const auto t = s[0].toTensor();
  fill_int(t, seed, 0, upper_bound(t.scalar_type()));
}
void random_to(Stack& s, const Seed& seed) { fill_int(s[0].toTensor(), seed, 0, s[1].toInt()); }
void random_from(Stack& s, const Seed& seed) {
  const auto t = s[0].toTensor();
  fill_int(t, seed, s[1].toInt(), s[2].isNone() ? upper_bound(t.scalar_type()) : s[2].toInt());
}

// A draw per element, each with its own probability.
at::Tensor draw_with(const at::Tensor& p, const Seed& seed) {
  auto u = at::empty(p.sizes(), p.options().dtype(p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  fill(u, RSX_RANDOM_UNIFORM, seed);
  return u.lt(p);
}
void bernoulli_tensor_(Stack& s, const Seed& seed) {
  const auto t = s[0].toTensor();
  t.copy_(draw_with(s[1].toTensor().expand(t.sizes()), seed));
}
void bernoulli(Stack& s, const Seed& seed) {
  const auto p = s[0].toTensor();
  s = Stack{draw_with(p, seed).to(p.scalar_type())};
}

// (input, p, train?) -> output, mask
void dropout(Stack& s, const Seed& seed) {
  const auto x = s[0].toTensor();
  const double p = s[1].toDouble();
  auto mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  if (!s[2].isNone() && !s[2].toBool()) {
    mask.fill_(true);
    s = Stack{x.clone(), mask};
    return;
  }
  fill(mask, RSX_RANDOM_BERNOULLI, seed, 1 - p);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  s = Stack{x.mul(mask).mul_(scale), mask};
}

}  // namespace

bool is_distribution(const OpInfo& op, const IValue* args) {
  const auto number = [&](uint32_t i) { return args[i].toDouble(); };
  if (op.eager == &uniform_) return number(1) <= number(2);
  if (op.eager == &normal_) return number(2) >= 0;
  if (op.eager == &bernoulli_) return number(1) >= 0 && number(1) <= 1;
  if (op.eager == &exponential_) return number(1) > 0;
  return true;
}

EagerKernel random_kernel(const std::string& name) {
  static const std::unordered_map<std::string, EagerKernel> kernels = {
      {"aten::uniform_", &uniform_},
      {"aten::normal_", &normal_},
      {"aten::exponential_", &exponential_},
      {"aten::bernoulli_.float", &bernoulli_},
      {"aten::bernoulli_.Tensor", &bernoulli_tensor_},
      {"aten::bernoulli", &bernoulli},
      {"aten::random_", &random_},
      {"aten::random_.to", &random_to},
      {"aten::random_.from", &random_from},
      {"aten::native_dropout", &dropout},
  };
  const auto it = kernels.find(name);
  return it == kernels.end() ? nullptr : it->second;
}

}  // namespace rsx
