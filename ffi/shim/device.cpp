// What PyTorch asks of a device: guard, hooks.
#include "generator.h"
#include "host_alloc.h"
#include "ops.h"

namespace rsx {
namespace {

c10::Device checked(c10::Device d) {
  TORCH_CHECK(d.index() <= 0, "rsx: invalid device ordinal ", static_cast<int>(d.index()), ": there is 1 rsx device");
  return kDevice;
}
c10::DeviceIndex checked(c10::DeviceIndex i) { return checked(c10::Device(kDevice.type(), i)).index(); }

c10::Stream the_stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }

// Events are tickets of the segment order, boxed as pointers.
void* boxed(uint64_t ticket) { return reinterpret_cast<void*>(static_cast<uintptr_t>(ticket) + 1); }
uint64_t ticket(void* event) { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(event)) - 1; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device d) const override { return checked(d); }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device d) const override { checked(d); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  // One in-order stream; every stream asked for is that one.
  c10::Stream getStream(c10::Device) const override { return the_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return the_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return the_stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return the_stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return the_stream(); }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  bool queryStream(const c10::Stream&) const override { return rsx_event_done(rsx_event_record()) != 0; }
  void synchronizeStream(const c10::Stream&) const override { check(rsx_synchronize(RSX_CAUSE_SYNCHRONIZE)); }
  void synchronizeDevice(const c10::DeviceIndex) const override { check(rsx_synchronize(RSX_CAUSE_SYNCHRONIZE)); }

  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = boxed(rsx_event_record());
  }
  void block(void*, const c10::Stream&) const override {}  // already in order
  bool queryEvent(void* event) const override { return !event || rsx_event_done(ticket(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) check(rsx_event_wait(ticket(event)));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from && to, "Both events must be recorded before calculating elapsed time.");
    const double ms = rsx_event_ms(ticket(from), ticket(to));
    TORCH_CHECK(ms >= 0, "Both events must be completed before calculating elapsed time.");
    return ms;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex i) const override { checked(i); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override { return checked(i); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override { return i < 0 ? 0 : checked(i); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override {
    checked(i);
    return default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override {
    checked(i);
    return at::make_generator<Generator>();
  }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

void register_device() {
  static auto* guard = new Guard();
  static c10::impl::DeviceGuardImplRegistrar registrar(kDevice.type(), guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  at::setHostAllocator(kDevice.type(), host_allocator());
}

}  // namespace rsx
