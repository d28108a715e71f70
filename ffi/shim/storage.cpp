#include "storage.h"

#include "infer.h"

namespace rsx {
namespace {

c10::DataPtr data_ptr_of(RsxStorage* storage) {
  return {rsx_storage_token(storage), storage, &rsx_storage_release, kDevice};
}

RsxStorage* new_storage(size_t nbytes) {
  check_fork();
  // Autograd's device thread would want the GIL while the interpreter finalises (a script that ends
  // right after backward() then aborts). There is one device: backward may as well run in its caller.
  static thread_local bool prepared = [] {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    return true;
  }();
  (void)prepared;
  return rsx_storage_new(nbytes);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return data_ptr_of(new_storage(nbytes)); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the address alone does not identify us
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "rsx: raw copies between device addresses are not supported");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { rsx_memory_trim(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}  // one in-order stream
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override;
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { rsx_memory_reset_peak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override;
};

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(c10::DeviceIndex) {
  RsxMemory m{};
  rsx_memory(&m);
  c10::CachingDeviceAllocator::DeviceStats stats;
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto set = [&](c10::CachingAllocator::StatArray& a, uint64_t now, uint64_t peak) {
    a[all].current = static_cast<int64_t>(now);
    a[all].peak = static_cast<int64_t>(peak);
  };
  set(stats.allocated_bytes, m.allocated, m.peak);
  set(stats.active_bytes, m.allocated, m.peak);
  set(stats.requested_bytes, m.allocated, m.peak);
  set(stats.reserved_bytes, m.reserved, m.reserved);
  stats.num_device_alloc = static_cast<int64_t>(m.system_allocations);
  return stats;
}

std::pair<size_t, size_t> Allocator::getMemoryInfo(c10::DeviceIndex) {
  RsxMemory m{};
  rsx_memory(&m);
  return {m.total > m.reserved ? m.total - m.reserved : 0, m.total};
}

Allocator* device_allocator() {
  static auto* a = new Allocator();  // storages may outlive static destructors
  return a;
}

// Every storage PyTorch itself makes for the device: empty_generic, torch.UntypedStorage, unpickling.
c10::intrusive_ptr<c10::StorageImpl> create(c10::StorageImpl::use_byte_size_t tag, c10::SymInt nbytes, c10::DataPtr ptr,
                                            c10::Allocator* alloc, bool resizable) {
  // Inference only needs metadata: no Rust storage behind it, an address that is no memory.
  if (C10_UNLIKELY(inferring())) {
    auto* nowhere = reinterpret_cast<void*>(uintptr_t{64});
    return c10::make_intrusive<c10::StorageImpl>(tag, nbytes, c10::DataPtr(nowhere, kDevice), alloc, resizable);
  }
  if (!ptr.get() && !ptr.get_context()) ptr = device_allocator()->allocate(nbytes.as_int_unchecked());
  auto storage = c10::make_intrusive<c10::StorageImpl>(tag, nbytes, std::move(ptr), alloc, resizable);
  arm(storage.get());
  return storage;
}

}  // namespace

c10::Allocator* allocator() { return device_allocator(); }

void materialize(c10::StorageImpl* storage) {
  auto* handle = handle_of(storage);
  void* address = nullptr;
  check(rsx_storage_expose(handle, &address));
  auto& ptr = storage->_mutable_data_ptr_no_checks();
  if (ptr.get() == address) return;
  if (ptr.get_deleter() != &rsx_storage_release) return;  // found by address: already real
  ptr.release_context();                                  // the reference moves to the new DataPtr
  storage->set_data_ptr_noswap(c10::DataPtr(address, handle, &rsx_storage_release, kDevice));
}

RsxStorage* find_by_address(c10::StorageImpl* storage) {
  const void* address = storage->_mutable_data_ptr_no_checks().get();
  auto* handle = rsx_storage_find(address);
  TORCH_CHECK(handle, "rsx: a storage at ", address, " that rsx did not allocate (or has freed) is on device rsx");
  return handle;
}

c10::Storage storage(RsxStorage* storage, int64_t nbytes) {
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(nbytes),
                                                    data_ptr_of(storage), device_allocator(), true);
  arm(impl.get());
  return c10::Storage(std::move(impl));
}

at::Tensor adopt(RsxStorage* handle, int64_t nbytes, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                 at::ScalarType dtype) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(storage(handle, nbytes), c10::DispatchKeySet(kKey),
                                                    c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return t;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
  const auto nbytes = nbytes_of(sizes, strides, dtype);
  return adopt(new_storage(nbytes), nbytes, sizes, strides, dtype);
}

int64_t nbytes_of(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype)));
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  check(rsx_storage_resize(handle_of(storage), nbytes));
  storage->set_nbytes(nbytes);
}

void set_geometry(const at::Tensor& t, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* impl = t.unsafeGetTensorImpl();
  const auto need = at::detail::computeStorageNbytes(sizes, strides, t.itemsize(), t.storage_offset());
  auto* storage = storage_of(impl);
  // Meta functions resize what they return (mse_loss): metadata alone, there is no memory then.
  if (need > storage->nbytes() && !inferring()) resize_storage(storage, need);
  impl->set_sizes_and_strides(sizes, strides);
}

at::Tensor upload(const at::Tensor& cpu) {
  TORCH_CHECK_NOT_IMPLEMENTED(cpu.layout() == at::kStrided, "rsx has no tensors of layout ", cpu.layout(),
                              "; only torch.strided");
  auto src = cpu.resolve_conj().resolve_neg();
  if (!src.is_non_overlapping_and_dense()) src = src.contiguous();
  auto t = new_tensor(src.sizes(), src.strides(), src.scalar_type());
  const auto nbytes = storage_of(t.unsafeGetTensorImpl())->nbytes();
  if (nbytes > 0) check(rsx_storage_upload(handle_of(t), src.const_data_ptr(), nbytes));
  return t;
}

at::Tensor download(const at::Tensor& t, RsxCause cause) {
  // One copy of the bytes that the geometry spans; strides stay as they are.
  at::Tensor host(at::detail::empty_strided_cpu(t.sizes(), t.strides(), t.scalar_type()));
  const auto nbytes = nbytes_of(t.sizes(), t.strides(), t.scalar_type());
  if (t.numel() > 0) {
    const auto offset = static_cast<uint64_t>(t.storage_offset()) * t.itemsize();
    check(rsx_storage_read(handle_of(t), offset, nbytes, host.mutable_data_ptr(), cause));
  }
  // copy_ and clone see lazy conj/neg bits (they fall through in ConjugateFallback.cpp).
  if (C10_UNLIKELY(t.is_conj())) host._set_conj(true);
  if (C10_UNLIKELY(t.is_neg())) host._set_neg(true);
  return host;
}

void register_storage() {
  c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &create);
  c10::SetAllocator(c10::DeviceType::PrivateUse1, device_allocator());
}

}  // namespace rsx
