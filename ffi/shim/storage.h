// PyTorch storages and tensors over Rust's storages.
//
// Tensors are plain strided TensorImpls and storages plain StorageImpls, so that views, autograd and
// everything else in PyTorch see nothing unusual. Only the DataPtr is ours: its address is a token,
// its context the Rust reference.
#pragma once
#include "op_info.h"
#include "status.h"

namespace rsx {

c10::Allocator* allocator();  // the device allocator registered for PrivateUse1

// Called by torch when somebody asks for a writable pointer (`data_ptr()`); before 2.13 by Python (_patches.py).
void materialize(c10::StorageImpl* storage);
#if __has_include(<c10/core/StorageMaterializer.h>)
constexpr bool kHasMaterializer = true;
inline void arm(c10::StorageImpl* storage) {
  // One-shot in torch: armed again by the next recorded write, so that the next data_ptr() waits for it.
  if (!storage->has_materializer()) storage->set_materializer(&materialize);
}
#else
constexpr bool kHasMaterializer = false;
inline void arm(c10::StorageImpl*) {}
#endif

// The Rust side of a storage; borrowed. Storages made by at::from_blob (unpickling, DLPack) carry
// no context and are found by address.
RsxStorage* find_by_address(c10::StorageImpl* storage);
inline RsxStorage* handle_of(c10::StorageImpl* storage) {
  auto& ptr = storage->_mutable_data_ptr_no_checks();
  if (C10_LIKELY(ptr.get_deleter() == &rsx_storage_release)) return static_cast<RsxStorage*>(ptr.get_context());
  return find_by_address(storage);
}
inline c10::StorageImpl* storage_of(const c10::TensorImpl* t) { return t->unsafe_storage().unsafeGetStorageImpl(); }
inline RsxStorage* handle_of(const at::Tensor& t) { return handle_of(storage_of(t.unsafeGetTensorImpl())); }

inline bool is_rsx(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->device_type() == c10::DeviceType::PrivateUse1;
}

// A PyTorch storage over a new reference to a Rust storage, which it takes.
c10::Storage storage(RsxStorage* storage, int64_t nbytes);
// A tensor over a new reference to a Rust storage, which it takes.
at::Tensor adopt(RsxStorage* storage, int64_t nbytes, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                 at::ScalarType dtype);
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype);
int64_t nbytes_of(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype);

// Gives a tensor a new geometry, growing its storage (contents kept) where needed.
void set_geometry(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides);
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

// Host copies. `upload` makes a new device tensor of a CPU tensor, without a cut; `download` waits.
at::Tensor upload(const at::Tensor& cpu);
at::Tensor download(const at::Tensor& t, RsxCause cause);

void register_storage();  // allocator and storage factory

}  // namespace rsx
