#include "ops.h"

namespace rsx {
namespace {

void check_options(std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::kStrided, "rsx has no tensors of layout ",
                              c10::layout_or_default(layout), "; only torch.strided");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!device || device->index() <= 0, "rsx: invalid device ordinal ", static_cast<int>(device->index()),
              ": there is 1 rsx device");
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_options(layout, device, pin);
  return at::Tensor(
      at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(kKey), c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin) {
  check_options(layout, device, pin);
  return at::Tensor(at::detail::empty_strided_generic(size, stride, allocator(), c10::DispatchKeySet(kKey),
                                                      c10::dtype_or_default(dtype)));
}

// The number of elements, as native arange computes it, so that the result has its size before it is
// recorded: the bounds are then operand data, and a moving start meets the same signature.
std::optional<int64_t> arange_size(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                                   at::ScalarType dtype) {
  if (start.isComplex() || end.isComplex() || step.isComplex()) return std::nullopt;
  double size;
  if (dtype == at::kLong) {
    const auto b = start.toLong(), e = end.toLong(), s = step.toLong();
    if (s == 0 || (s > 0 ? e < b : e > b)) return std::nullopt;
    size = std::ceil(static_cast<double>((e - b + s - (s > 0 ? 1 : -1)) / s));
  } else {
    const auto b = start.toDouble(), e = end.toDouble(), s = step.toDouble();
    if (s == 0 || !std::isfinite(b) || !std::isfinite(e) || (s > 0 ? e < b : e > b)) return std::nullopt;
    size = std::ceil((e - b) / s);
  }
  if (!(size >= 0 && size < 9e15)) return std::nullopt;
  return static_cast<int64_t>(size);
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  static auto* op = op_info("aten::arange", "start_out");
  const auto size = arange_size(start, end, step, out.scalar_type());
  if (!size) {  // PyTorch's own error, from its meta function
    auto meta = at::empty({0}, out.options().device(at::kMeta));
    at::arange_out(meta, start, end, step);
    TORCH_CHECK(false, "arange: unsupported range ", start, " -> ", end, " by ", step);
  }
  if (out.numel() != *size) out.resize_({*size});
  call(*op, start, end, step, out);
  return out;
}

}  // namespace

void register_factories(Registrar& r) {
  r.impl("empty.memory_format", &empty);
  r.impl("empty_strided", &empty_strided);
  r.impl("arange.start_out", &arange_out);
}

}  // namespace rsx
