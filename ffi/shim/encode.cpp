#include "encode.h"

namespace rsx {
namespace {

// Open addressing by storage pointer; entries of older calls are told apart by their stamp, so that
// nothing is cleared. A multi-tensor optimiser names several hundred storages per call.
struct IndexTable {
  struct Slot {
    RsxStorage* key;
    uint32_t stamp, index;
  };
  std::vector<Slot> slots = std::vector<Slot>(1024);
  uint32_t stamp = 0;
  const Encoder* owner = nullptr;
  size_t used = 0;

  uint32_t* find(RsxStorage* key) {
    const size_t mask = slots.size() - 1;
    auto hash = reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15ull >> 32;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      auto& s = slots[i];
      if (s.stamp != stamp) {
        s = {key, stamp, UINT32_MAX};
        ++used;
        return &s.index;
      }
      if (s.key == key) return &s.index;
    }
  }
  void restart(const Encoder* encoder, c10::ArrayRef<RsxStorage*> known) {
    owner = encoder;
    used = 0;
    if (++stamp == 0) {  // wrapped: stale stamps could match
      std::fill(slots.begin(), slots.end(), Slot{nullptr, 0, 0});
      stamp = 1;
    }
    for (size_t i = 0; i < known.size(); ++i) *find(known[i]) = static_cast<uint32_t>(i);
  }
};
thread_local IndexTable t_index;

}  // namespace

void Words::grow(size_t n) {
  const size_t used = size();
  const bool first = begin_ == few_;
  many_.resize(std::max(2 * used, used + n));
  if (first) std::copy(few_, few_ + used, many_.begin());
  begin_ = many_.data();
  end_ = begin_ + used;
  cap_ = begin_ + many_.size();
}

size_t Encoder::index_of_many(RsxStorage* storage) {
  auto& table = t_index;
  if (storages.size() == 17 || table.owner != this) table.restart(this, {storages.data(), storages.size()});
  if (table.used * 2 > table.slots.size()) {
    table.slots.assign(table.slots.size() * 2, {nullptr, 0, 0});
    table.stamp = 0;
    table.restart(this, {storages.data(), storages.size()});
  }
  auto* index = table.find(storage);
  if (*index == UINT32_MAX) {
    *index = static_cast<uint32_t>(storages.size());
    storages.push_back(storage);
    written_storages.push_back(false);
  }
  return *index;
}

void Encoder::string(const std::string& s) {
  words.push_back(header(kStr, 0, 0, 0, s.size()));
  for (size_t i = 0; i < s.size(); i += 8) {
    uint64_t u = 0;
    std::memcpy(&u, s.data() + i, std::min<size_t>(8, s.size() - i));
    words.push_back(u);
  }
}

// Everything that is no tensor, number or None.
void Encoder::list(const IValue& v, bool written) {
  if (!v.isList()) {
    if (v.isString()) return string(v.toStringRef());
    if (v.isGenerator()) return words.push_back(header(kGenerator));
    if (v.isDevice()) {
      const auto d = v.toDevice();
      return words.push_back(header(kDeviceArg, static_cast<uint8_t>(d.type()), 0, 0, static_cast<uint8_t>(d.index())));
    }
    if (v.isComplexDouble()) {
      const auto c = v.toComplexDouble();
      words.push_back(header(kComplex));
      data.push_back(bits_of(c.real()));
      data.push_back(bits_of(c.imag()));
      return;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "rsx: an operator argument of kind ", v.tagKind(), " is not supported");
  }
  const auto items = v.toListRef();
  const auto begin = [&](Tag tag) { words.push_back(header(tag, 0, 0, 0, items.size())); };
  if (v.isTensorList()) {
    begin(kTensorList);
    for (const auto& e : items) tensor(e.unsafeToTensorImpl(), written);
  } else if (v.isIntList()) {
    begin(kIntList);
    for (const auto& e : items) words.push_back(static_cast<uint64_t>(e.toInt()));
  } else if (v.isBoolList()) {
    begin(kBoolList);
    for (const auto& e : items) words.push_back(e.toBool());
  } else if (v.isDoubleList()) {
    begin(kDoubleList);
    for (const auto& e : items) words.push_back(bits_of(e.toDouble()));
  } else if (v.isOptionalTensorList()) {
    begin(kOptTensorList);
    for (const auto& e : items) argument(e, written, RSX_ENCODE_STRUCTURE);
  } else {
    begin(kScalarList);
    for (const auto& e : items) argument(e, written, RSX_ENCODE_DATA);
  }
}

}  // namespace rsx
