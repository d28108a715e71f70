#include "generator.h"

namespace rsx {
namespace {

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

// An upper bound of the numbers that a call draws: the largest tensor or size it names.
uint64_t numbers_drawn(const OpInfo& op, const IValue* args) {
  int64_t most = 1;
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined()) most = std::max(most, args[i].toTensor().numel());
    if (args[i].isIntList()) most = std::max(most, c10::multiply_integers(args[i].toIntVector()));
  }
  return static_cast<uint64_t>(most);
}

}  // namespace

Generator::Generator(uint64_t seed) : GeneratorImpl(kDevice, c10::DispatchKeySet(kKey)), seed_(seed) {}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  auto state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, at::TensorOptions().dtype(at::kByte));
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void Generator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == static_cast<int64_t>(kStateBytes), "RNG state is wrong size");
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  seed_ = words[0];
  offset_ = words[1];
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(seed_);
  copy->offset_ = offset_;
  return copy;
}

Seed Generator::reserve(uint64_t count) {
  const Seed drawn{seed_, offset_};
  offset_ += count;
  return drawn;
}

const at::Generator& default_generator() {
  static auto* g = new at::Generator(at::make_generator<Generator>());
  return *g;
}

Seed draw(const OpInfo& op, const IValue* args) {
  at::Generator generator = default_generator();
  for (uint32_t i = 0; i < op.nargs; ++i) {
    if (args[i].isGenerator()) generator = args[i].toGenerator();
  }
  auto* impl = at::check_generator<Generator>(generator);  // "Expected a 'rsx' device type for generator ..."
  std::lock_guard lock(impl->mutex_);
  return impl->reserve(numbers_drawn(op, args));
}

}  // namespace rsx
