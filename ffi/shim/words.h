// Layout of a signature's words (mirrored by rsx_lazy::words).
//
// words[0] is the operator's stable hash; then one entry per argument: a header
//   bits 0..8 tag | 8..16 dtype | 16..24 ndim | 24..32 flags | 32..64 index or length
// followed by the entry's own words. Operand *values* that do not shape the result (scalars, random
// seeds) are in the record's data, so that a changing learning rate meets the same signature.
#pragma once
#include <cstdint>

namespace rsx {

enum Tag : uint64_t {
  kNone = 0,
  kUndef = 1,           // an undefined tensor
  kTensor = 2,          // dtype, ndim, flags, storage index; offset, sizes.., strides..
  kCpuScalar = 3,       // dtype, flags; value in 1 data word (2 for complex128)
  kInt = 4,             // 1 word
  kDouble = 5,          // 1 word
  kBool = 6,            // the dtype field is the value
  kComplex = 7,         // 2 data words
  kIntList = 8,         // length; words
  kDoubleList = 9,      // length; words
  kBoolList = 10,       // length; words
  kTensorList = 11,     // length; entries
  kOptTensorList = 12,  // length; entries (kNone for a missing one)
  kStr = 13,            // length in bytes; words, zero padded
  kDeviceArg = 14,        // the dtype field is the device type; index
  kGenerator = 15,
  kScalarList = 16,     // length; entries (kDataInt, kDataDouble, kDataBool, kComplex)
  kDataInt = 17,        // 1 data word
  kDataDouble = 18,     // 1 data word
  kDataBool = 19,       // 1 data word
  kRng = 20,            // a random op's seed and offset: 2 data words; always the last entry
};
enum TensorFlag : uint64_t { kWrappedNumber = 1 };

constexpr uint64_t header(Tag tag, uint64_t dtype = 0, uint64_t ndim = 0, uint64_t flags = 0, uint64_t index = 0) {
  return tag | dtype << 8 | ndim << 16 | flags << 24 | index << 32;
}
constexpr Tag tag_of(uint64_t h) { return static_cast<Tag>(h & 0xff); }
constexpr int dtype_of(uint64_t h) { return static_cast<int>(h >> 8 & 0xff); }
constexpr uint64_t ndim_of(uint64_t h) { return h >> 16 & 0xff; }
constexpr uint64_t flags_of(uint64_t h) { return h >> 24 & 0xff; }
constexpr uint64_t index_of(uint64_t h) { return h >> 32; }

}  // namespace rsx
