// Stand-ins for our tensors during inference: same metadata and aliasing, no memory, no hook.
#pragma once
#include "storage.h"

namespace rsx {

class Shadows {
 public:
  explicit Shadows(c10::DispatchKey key) : key_(key) {}

  at::Tensor of(const at::Tensor& t) {
    if (!t.defined() || !is_rsx(t)) return t;
    auto* impl = t.unsafeGetTensorImpl();
    for (auto& [original, shadow] : tensors_)
      if (original == impl) return shadow;
    auto m = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_for(storage_of(impl))),
                                                      c10::DispatchKeySet(key_), impl->dtype());
    m.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (impl->is_wrapped_number()) m.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (t.is_conj()) m._set_conj(true);
    if (t.is_neg()) m._set_neg(true);
    tensors_.emplace_back(impl, m);
    return m;
  }

 private:
  c10::Storage storage_for(c10::StorageImpl* s) {
    for (auto& [original, shadow] : storages_)
      if (original == s) return shadow;
    const bool meta = key_ == c10::DispatchKey::Meta;
    // The address keeps distinct storages distinct in overlap checks.
    c10::DataPtr ptr = meta ? c10::DataPtr(nullptr, c10::Device(at::kMeta))
                            : c10::DataPtr(s->_mutable_data_ptr_no_checks().get(), kDevice);
    auto* alloc = meta ? c10::GetAllocator(at::kMeta) : allocator();
    auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                      c10::SymInt(static_cast<int64_t>(s->nbytes())), std::move(ptr),
                                                      alloc, meta);
    storages_.emplace_back(s, c10::Storage(std::move(impl)));
    return storages_.back().second;
  }

  c10::DispatchKey key_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 8> storages_;
  c10::SmallVector<std::pair<c10::TensorImpl*, at::Tensor>, 8> tensors_;
};

}  // namespace rsx
