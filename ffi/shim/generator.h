// The device's random generator: a Philox seed and offset, kept on the host.
//
// Reading or restoring the state never waits for the device, and the numbers an op draws depend on
// (seed, offset) alone, whichever engine runs it.
#pragma once
#include "op_info.h"

namespace rsx {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(uint64_t seed = c10::default_rng_seed_val);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // Reserves `count` counters: element i of a call draws from block (seed, offset + i), as rsx_lazy::philox says.
  Seed reserve(uint64_t count);

 private:
  Generator* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator();
// The numbers of one call: from its generator argument, else from the default one.
Seed draw(const OpInfo& op, const IValue* args);

}  // namespace rsx
