#include "decode.h"

namespace rsx {

double Decoder::real(uint64_t bits) {
  double d;
  std::memcpy(&d, &bits, sizeof d);
  return d;
}

at::Tensor Decoder::tensor(uint64_t head) {
  const auto dtype = static_cast<at::ScalarType>(dtype_of(head));
  const auto ndim = ndim_of(head), storage = index_of(head);
  const auto offset = static_cast<int64_t>(word());
  const c10::IntArrayRef sizes(reinterpret_cast<const int64_t*>(word_), ndim);
  word_ += ndim;
  const c10::IntArrayRef strides(reinterpret_cast<const int64_t*>(word_), ndim);
  word_ += ndim;
  // The storage begins at the pointer, so that tensors which overlap still share it for the
  // kernels' own overlap checks: same base, different offsets.
  auto* base = static_cast<char*>(eval_.ptrs[storage]);
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  auto t = at::from_blob(base + offset * static_cast<int64_t>(c10::elementSize(dtype)), sizes, strides, options);
  const auto flags = flags_of(head);
  if (flags & kWrappedNumber) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

at::Tensor Decoder::scalar(uint64_t head) {
  const auto dtype = static_cast<at::ScalarType>(dtype_of(head));
  at::Tensor t(at::detail::empty_cpu({}, at::TensorOptions().dtype(dtype)));
  const auto size = c10::elementSize(dtype);
  std::memcpy(t.mutable_data_ptr(), datum_, size);
  datum_ += size > 8 ? 2 : 1;
  const auto flags = flags_of(head);
  if (flags & kWrappedNumber) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

std::string Decoder::string(uint64_t length) {
  std::string s(length, '\0');
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t w = word();
    std::memcpy(&s[i], &w, std::min<uint64_t>(8, length - i));
  }
  return s;
}

IValue Decoder::list(uint64_t head) {
  const auto n = index_of(head);
  switch (tag_of(head)) {
    case kIntList: {
      c10::List<int64_t> l;
      for (uint64_t i = 0; i < n; ++i) l.push_back(static_cast<int64_t>(word()));
      return l;
    }
    case kBoolList: {
      c10::List<bool> l;
      for (uint64_t i = 0; i < n; ++i) l.push_back(word() != 0);
      return l;
    }
    case kDoubleList: {
      c10::List<double> l;
      for (uint64_t i = 0; i < n; ++i) l.push_back(real(word()));
      return l;
    }
    case kTensorList: {
      c10::List<at::Tensor> l;
      for (uint64_t i = 0; i < n; ++i) l.push_back(next().toTensor());
      return l;
    }
    case kOptTensorList: {
      c10::List<std::optional<at::Tensor>> l;
      for (uint64_t i = 0; i < n; ++i) {
        auto v = next();
        l.push_back(v.isNone() ? std::nullopt : std::optional<at::Tensor>(v.toTensor()));
      }
      return l;
    }
    default: {  // kScalarList
      c10::impl::GenericList l(c10::NumberType::get());
      for (uint64_t i = 0; i < n; ++i) l.push_back(next());
      return l;
    }
  }
}

IValue Decoder::next() {
  const uint64_t head = word();
  switch (tag_of(head)) {
    case kNone:
    case kGenerator:  // random ops get their seed instead
      return {};
    case kUndef:
      return at::Tensor();
    case kTensor:
      return tensor(head);
    case kCpuScalar:
      return scalar(head);
    case kInt:
      return static_cast<int64_t>(word());
    case kDataInt:
      return static_cast<int64_t>(datum());
    case kDouble:
      return real(word());
    case kDataDouble:
      return real(datum());
    case kBool:
      return dtype_of(head) != 0;
    case kDataBool:
      return datum() != 0;
    case kComplex: {
      const double re = real(datum()), im = real(datum());
      return c10::complex<double>(re, im);
    }
    case kStr:
      return string(index_of(head));
    case kDeviceArg:
      return c10::Device(at::kCPU);
    case kRng:
      TORCH_INTERNAL_ASSERT(false, "rsx: a seed among the arguments");
    default:
      return list(head);
  }
}

Seed Decoder::seed() {
  TORCH_INTERNAL_ASSERT(tag_of(word()) == kRng, "rsx: a random op without its seed");
  const uint64_t seed = datum(), offset = datum();
  return {seed, offset};
}

}  // namespace rsx
