// Traffic: device to device (recorded), host to device (no cut), device to host (waits).
#include "ops.h"

namespace rsx {
namespace {

bool has_bits(const at::Tensor& t) { return t.is_conj() || t.is_neg(); }

// The same memory without lazy conjugation and negation.
at::Tensor physical(const at::Tensor& t) {
  if (!has_bits(t)) return t;
  auto plain = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(t.storage()), c10::DispatchKeySet(kKey), t.dtype());
  plain.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return plain;
}

void device_to_device(const at::Tensor& self, const at::Tensor& src) {
  static auto* copy = op_info("aten::copy_");
  static auto* conj = op_info("aten::conj_physical_");
  static auto* neg = op_info("aten::neg_");
  const auto dst = physical(self);
  call(*copy, dst, physical(src), false);
  if (C10_UNLIKELY(self.is_conj() != src.is_conj())) call(*conj, dst);
  if (C10_UNLIKELY(self.is_neg() != src.is_neg())) call(*neg, dst);
}

// Whether the tensor's elements are exactly its storage's bytes.
bool fills_storage(const at::Tensor& t) {
  const auto bytes = static_cast<size_t>(t.numel()) * t.itemsize();
  return t.storage_offset() == 0 && t.is_non_overlapping_and_dense() && storage_of(t.unsafeGetTensorImpl())->nbytes() == bytes;
}

void host_to_device(const at::Tensor& self, const at::Tensor& src) {
  TORCH_CHECK_NOT_IMPLEMENTED(!src.is_meta(), "Cannot copy out of meta tensor; no data!");
  TORCH_CHECK(src.device().is_cpu(), "rsx: cannot copy from ", src.device(), " to ", self.device(), "; go through the CPU");
  if (!fills_storage(self)) {
    auto host = src.scalar_type() == self.scalar_type() ? src : src.to(self.scalar_type());
    return device_to_device(self, upload(host));
  }
  auto host = src;
  if (src.scalar_type() != self.scalar_type() || src.sizes() != self.sizes() || src.strides() != self.strides() ||
      has_bits(src) || has_bits(self)) {
    host = at::empty_strided(self.sizes(), self.strides(), self.options().device(at::kCPU));
    host._set_conj(self.is_conj());
    host._set_neg(self.is_neg());
    host.copy_(src);  // converts, expands, or says why it cannot
  }
  auto* storage = storage_of(self.unsafeGetTensorImpl());
  if (storage->nbytes() == 0) return;
  check(rsx_storage_upload(handle_of(storage), host.const_data_ptr(), storage->nbytes()));
  arm(storage);
}

void device_to_host(at::Tensor& self, const at::Tensor& src) {
  const bool direct = self.device().is_cpu() && self.scalar_type() == src.scalar_type() && self.sizes() == src.sizes() &&
                      self.strides() == src.strides() && src.is_non_overlapping_and_dense() && !has_bits(self) &&
                      !has_bits(src);
  if (!direct) {
    self.copy_(download(src, RSX_CAUSE_COPY_TO_HOST));
    return;
  }
  const auto bytes = static_cast<uint64_t>(src.numel()) * src.itemsize();
  const auto offset = static_cast<uint64_t>(src.storage_offset()) * src.itemsize();
  if (bytes > 0) check(rsx_storage_read(handle_of(src), offset, bytes, self.mutable_data_ptr(), RSX_CAUSE_COPY_TO_HOST));
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin, bool non_blocking,
                   std::optional<at::MemoryFormat> format) {
  const bool strided = !layout || *layout == at::kStrided;
  if (is_rsx(self) && (!device || device->type() == kDevice.type()) && strided && !has_bits(self) && !inferring()) {
    // A cast is one node instead of empty_strided + copy_.
    static auto* op = op_info("aten::_to_copy");
    const auto code = [](auto v) { return v ? IValue(static_cast<int64_t>(*v)) : IValue(); };
    return call(*op, self, code(dtype), IValue(), kDevice, IValue(), false, code(format)).toTensor();
  }
  return at::native::_to_copy(self, dtype, layout, device, pin, non_blocking, format);
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> format) {
  if (has_bits(self) || inferring()) return at::native::clone(self, format);
  static auto* op = op_info("aten::clone");
  return call(*op, self, format ? IValue(static_cast<int64_t>(*format)) : IValue()).toTensor();
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor d = dst;
  copy_(d, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (is_rsx(dst) && dst.sizes() != self.sizes()) set_geometry(dst, self.sizes(), self.strides());
  return copy_from(self, dst, false);
}

at::Scalar item(const at::Tensor& self) {
  if (inferring()) throw InferBail();
  return download(self, RSX_CAUSE_ITEM).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device() && self.dtype() == other.dtype(),
              "Cannot compare two tensors on different devices or of different dtypes: ", self.device(), " ", self.dtype(),
              " and ", other.device(), " ", other.dtype());
  if (!self.is_same_size(other)) return false;
  return self.numel() == 0 || at::eq(self, other).all().item<bool>();
}

}  // namespace

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool) {
  if (inferring() || self.is_same(src)) return self;
  check_fork();
  if (!is_rsx(self)) device_to_host(self, src);
  else if (is_rsx(src)) device_to_device(self, src);
  else host_to_device(self, src);
  return self;
}

void register_copies(Registrar& r) {
  r.impl("copy_", &copy_);
  r.impl("_to_copy", &to_copy);
  r.impl("clone", &clone);
  r.impl("_copy_from", &copy_from);
  r.impl("_copy_from_and_resize", &copy_from_and_resize);
  r.impl("_local_scalar_dense", &item);
  r.impl("equal", &equal);
}

}  // namespace rsx
