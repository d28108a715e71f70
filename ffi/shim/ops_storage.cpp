// Storage surgery: set_, resize_ and their relatives.
#include "ops.h"

namespace rsx {
namespace {

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (!format && self.sizes() == size) return self;
  // Strides from a meta tensor: one place that knows every memory format.
  const auto shape = at::empty(size, self.options().device(at::kMeta), format);
  set_geometry(self, shape.sizes(), shape.strides());
  return self;
}

at::Tensor& set_storage_geometry(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                                 c10::IntArrayRef stride) {
  at::native::checkSetStorage<int64_t>(self, std::move(source), offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data()) {
    set_geometry(self, size, stride);
  } else {
    set_geometry(self, size, c10::contiguous_strides(size));
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return self.set_(std::move(source), 0, {n}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return self.set_(source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  at::Storage storage(c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(), 0, allocator()->allocate(0), allocator(),
                                             true, kDevice));
  return self.set_(std::move(storage), 0, {0}, {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

// Asked by `param.data = x` and `Module.to`: our tensors are plain, so metadata can move between them and
// CPU tensors as it can for CUDA's. Parameters thus stay the same objects, and tied ones stay tied.
bool compatible(const at::Tensor& self, const at::Tensor& from) {
  const auto plain = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && !t.is_nested() && (is_rsx(t) || t.device().is_cpu());
  };
  return plain(self) && plain(from);
}

void record_stream(at::Tensor&, at::Stream) {}  // one in-order stream, and buffers are counted

}  // namespace

void register_storages(Registrar& r) {
  r.impl("resize_", &resize_);
  r.impl("set_.source_Storage_storage_offset", &set_storage_geometry);
  r.impl("set_.source_Storage", &set_storage);
  r.impl("set_.source_Tensor", &set_tensor);
  r.impl("set_", &set_empty);
  r.impl("is_set_to", &is_set_to);
  r.impl("_has_compatible_shallow_copy_type", &compatible);
  r.impl("record_stream", &record_stream);
}

}  // namespace rsx
