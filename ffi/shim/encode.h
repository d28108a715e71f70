// An operator call as a flat record: words (structure), data (values), storages.
#pragma once
#include "storage.h"
#include "words.h"

namespace rsx {

// The words of a record: room for an entry is made once, then its words are stored without checks.
class Words {
 public:
  Words() = default;
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  const uint64_t* data() const { return begin_; }
  size_t size() const { return static_cast<size_t>(end_ - begin_); }
  void push_back(uint64_t w) { *extend(1) = w; }
  // The first of n new words, for the caller to fill in.
  uint64_t* extend(size_t n) {
    if (C10_UNLIKELY(static_cast<size_t>(cap_ - end_) < n)) grow(n);
    return std::exchange(end_, end_ + n);
  }

 private:
  void grow(size_t n);
  uint64_t few_[128];
  std::vector<uint64_t> many_;
  uint64_t *begin_ = few_, *end_ = few_, *cap_ = few_ + 128;
};

class Encoder {
 public:
  Words words;
  c10::SmallVector<uint64_t, 8> data;
  c10::SmallVector<RsxStorage*, 16> storages;  // borrowed from the tensors on the stack
  c10::SmallVector<bool, 16> written_storages;
  // A tensor that is neither ours nor a scalar: the record cannot be used.
  bool foreign = false;
  // A tensor is lazily conjugated or negated, which records cannot say. Most ops never see one; products do.
  bool lazy_bits = false;

  void op(const OpInfo& op, const IValue* args) {
    words.push_back(op.hash);
    const uint64_t writes = C10_UNLIKELY(op.dynamic_writes != nullptr) ? op.dynamic_writes(args) : op.writes;
    for (uint32_t i = 0; i < op.nargs; ++i) argument(args[i], writes >> i & 1, op.encoding[i]);
  }

  void seed(const Seed& s) {
    words.push_back(header(kRng));
    data.push_back(s.seed);
    data.push_back(s.offset);
  }

  RsxRecord record(const OpInfo& op) const {
    return {words.data(), words.size(), storages.data(), written_storages.data(), storages.size(), data.data(), data.size(), op.id};
  }

 private:
  void tensor(const c10::TensorImpl* t, bool written);
  void number(Tag tag, uint64_t bits) {
    words.push_back(header(tag));
    data.push_back(bits);
  }
  void argument(const IValue& v, bool written, uint32_t encoding);
  void list(const IValue& v, bool written);
  void string(const std::string& s);
  size_t index_of_many(RsxStorage* storage);  // large lists: a table instead of a scan

  size_t index_of(RsxStorage* storage) {
    if (C10_UNLIKELY(storages.size() > 16)) return index_of_many(storage);
    for (size_t i = 0; i < storages.size(); ++i)
      if (storages[i] == storage) return i;
    storages.push_back(storage);
    written_storages.push_back(false);
    return storages.size() - 1;
  }
};

inline void Encoder::tensor(const c10::TensorImpl* t, bool written) {
  if (C10_UNLIKELY(t == c10::UndefinedTensorImpl::singleton())) {
    words.push_back(header(kUndef));
    return;
  }
  const auto dtype = static_cast<uint8_t>(c10::typeMetaToScalarType(t->dtype()));
  const uint64_t flags = t->is_wrapped_number() ? uint64_t{kWrappedNumber} : 0;
  if (C10_LIKELY(t->device_type() == c10::DeviceType::PrivateUse1 && t->layout() == at::kStrided)) {
    constexpr c10::DispatchKeySet kLazyBits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    lazy_bits |= t->key_set().has_any(kLazyBits);
    auto* storage = storage_of(t);
    const auto index = index_of(handle_of(storage));
    if (written) {
      written_storages[index] = true;
      arm(storage);
    }
    const auto sizes = t->sizes(), strides = t->strides();
    const size_t rank = sizes.size();
    uint64_t* w = words.extend(2 + 2 * rank);
    *w++ = header(kTensor, dtype, rank, flags, index);
    *w++ = static_cast<uint64_t>(t->storage_offset());
    for (size_t i = 0; i < rank; ++i) w[i] = static_cast<uint64_t>(sizes[i]);
    for (size_t i = 0; i < rank; ++i) w[rank + i] = static_cast<uint64_t>(strides[i]);
    return;
  }
  if (t->device_type() == c10::DeviceType::CPU && t->dim() == 0 && !written && t->layout() == at::kStrided) {
    // A host scalar is read now: its value is an operand of this call.
    words.push_back(header(kCpuScalar, dtype, 0, flags));
    uint64_t value[2] = {0, 0};
    std::memcpy(value, t->data(), t->itemsize());
    data.push_back(value[0]);
    if (t->itemsize() > 8) data.push_back(value[1]);
    return;
  }
  foreign = true;
}

inline uint64_t bits_of(double d) {
  uint64_t u;
  std::memcpy(&u, &d, sizeof u);
  return u;
}

inline void Encoder::argument(const IValue& v, bool written, uint32_t encoding) {
  if (v.isTensor()) return tensor(v.unsafeToTensorImpl(), written);
  if (v.isNone()) return words.push_back(header(kNone));
  if (v.isInt()) {
    if (encoding == RSX_ENCODE_DATA) return number(kDataInt, static_cast<uint64_t>(v.toInt()));
    words.push_back(header(kInt));
    return words.push_back(static_cast<uint64_t>(v.toInt()));
  }
  if (v.isDouble()) {
    if (encoding != RSX_ENCODE_STRUCTURE) return number(kDataDouble, bits_of(v.toDouble()));
    words.push_back(header(kDouble));
    return words.push_back(bits_of(v.toDouble()));
  }
  if (v.isBool()) {
    if (encoding != RSX_ENCODE_STRUCTURE) return number(kDataBool, v.toBool());
    return words.push_back(header(kBool, v.toBool()));
  }
  list(v, written);
}

}  // namespace rsx
