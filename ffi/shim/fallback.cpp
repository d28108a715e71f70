// Run at once: ops whose result cannot be described before it exists.
#include <deque>

#include "eager.h"
#include "generator.h"
#include "run.h"

namespace rsx {
namespace {

// Host copies of the storages that a call names. Whole storages, so that arguments which overlap on
// the device overlap here too.
class HostCopies {
 public:
  explicit HostCopies(RsxCause cause) : cause_(cause) {}

  at::Tensor of(const at::Tensor& t, bool written) {
    if (!t.defined() || !is_rsx(t)) return t;
    // An argument given twice stays one tensor: kernels look (an output that is an operand is not resized).
    for (auto& [device, host, is_written] : made_)
      if (device == t.unsafeGetTensorImpl() && is_written == written) return host;
    auto host = make(t, written);
    for (auto& [device, other, is_written] : made_)
      if (device == t.unsafeGetTensorImpl()) host = other;
    made_.push_back({t.unsafeGetTensorImpl(), host, written});
    if (written) written_.emplace_back(t, host);
    return host;
  }

  at::Tensor make(const at::Tensor& t, bool written) {
    auto& copy = storage(storage_of(t.unsafeGetTensorImpl()));
    copy.written |= written;
    at::Tensor host(at::detail::empty_cpu({0}, at::TensorOptions().dtype(t.scalar_type())));
    host.set_(copy.host, t.storage_offset(), t.sizes(), t.strides());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (t.is_conj()) host._set_conj(true);
    if (t.is_neg()) host._set_neg(true);
    return host;
  }

  void write_back() {
    for (auto& [device, host] : written_) {
      if (device.sizes() != host.sizes() || device.strides() != host.strides())
        set_geometry(device, host.sizes(), host.strides());  // a resized out= tensor
    }
    for (auto& copy : copies_) {
      if (!copy.written) continue;
      const auto nbytes = std::min(copy.device->nbytes(), copy.host.nbytes());
      if (nbytes > 0) check(rsx_storage_upload(handle_of(copy.device), copy.host.data(), nbytes));
    }
  }

 private:
  struct Copy {
    c10::StorageImpl* device;
    c10::Storage host;
    bool written = false;
  };
  Copy& storage(c10::StorageImpl* device) {
    for (auto& c : copies_)
      if (c.device == device) return c;
    const auto nbytes = device->nbytes();
    at::Tensor bytes(at::detail::empty_cpu({static_cast<int64_t>(nbytes)}, at::TensorOptions().dtype(at::kByte)));
    if (nbytes > 0) check(rsx_storage_read(handle_of(device), 0, nbytes, bytes.mutable_data_ptr(), cause_));
    copies_.push_back({device, bytes.storage()});
    return copies_.back();
  }

  RsxCause cause_;
  std::deque<Copy> copies_;
  struct Made {
    c10::TensorImpl* device;
    at::Tensor host;
    bool written;
  };
  std::vector<Made> made_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

RsxCause cause_of(uint32_t reason) {
  return reason == RSX_WHY_DYNAMIC_SHAPE ? RSX_CAUSE_DYNAMIC_SHAPE : RSX_CAUSE_FALLBACK;
}

}  // namespace

void run_on_cpu(OpInfo& op, Stack& stack, uint32_t reason) {
  const auto& schema = op.handle.schema();
  for (uint32_t r = 0; r < op.nrets; ++r) {
    const auto* alias = schema.returns()[r].alias_info();
    TORCH_CHECK_NOT_IMPLEMENTED(!alias || alias->isWrite(), "Could not run '", op.name,
                                "' on device rsx: it returns a view and has no kernel for rsx");
  }
  rsx_note_fallback(op.id, reason);
  const auto base = stack.size() - op.nargs;
  HostCopies copies(cause_of(reason));
  Stack host;
  host.reserve(op.nargs);
  for (uint32_t i = 0; i < op.nargs; ++i) {
    const auto& v = stack[base + i];
    if (v.isDevice()) host.emplace_back(c10::Device(at::kCPU));
    else host.push_back(map_tensors(v, [&](const at::Tensor& t) { return copies.of(t, op.writes_arg(i)); }));
  }
  const Seed seed = op.random ? draw(op, &stack[base]) : Seed{};
  {
    HostScope scope;
    run_host_kernel(op, host, seed);
  }
  copies.write_back();
  Stack returned;
  for (uint32_t r = 0; r < op.nrets; ++r) {
    if (op.ret_arg[r] >= 0) returned.push_back(stack[base + op.ret_arg[r]]);
    else
      returned.push_back(map_tensors(host[r], [](const at::Tensor& t) {
        return t.defined() && t.device().is_cpu() ? upload(t) : t;
      }));
  }
  stack.resize(base);
  for (auto& v : returned) stack.push_back(std::move(v));
}

}  // namespace rsx
