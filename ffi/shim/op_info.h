// What the shim knows of an operator: taken from its schema once, then only read.
#pragma once
#include "rsx_abi.h"

namespace rsx {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;
inline const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);

using c10::IValue;
using torch::jit::Stack;

// Whether an argument or result is a tensor.
inline bool present(const IValue& v) { return v.isTensor() && v.toTensor().defined(); }

// An op's kernel on CPU tensors where libtorch has none (or the wrong one for us): works on the
// decoded stack, in place. `seed` is null unless the op is random.
struct Seed {
  uint64_t seed = 0, offset = 0;
};
using EagerKernel = void (*)(Stack& stack, const Seed& seed);
// The arguments written, where the schema does not say so or says too much (bit i = argument i).
using WriteMask = uint64_t (*)(const IValue* args);

// How the results of an unknown signature are found without asking PyTorch.
enum class Rule : uint8_t {
  kAsk,      // structured shadow, then Meta
  kInPlace,  // results are written arguments whose metadata does not change
  kCopy,     // copy_: in place when the shapes are equal
  kForeach,  // one result per tensor of list 0, like it
  kCarried,  // the same, whatever the rest is (while_loop)
  kLinear,   // gradients of a linear layer
};

struct OpInfo {
  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  uint32_t id = 0;   // Rust's number, and the index into the table here
  uint64_t hash = 0;
  uint32_t nargs = 0, nrets = 0;
  uint64_t writes = 0;                   // bit i: argument i is written
  WriteMask dynamic_writes = nullptr;    // replaces `writes` when set
  c10::SmallVector<uint8_t, 16> encoding;  // per argument: RsxEncoding; structure for all but numbers
  c10::SmallVector<int8_t, 4> ret_arg;   // the written argument that a result is, or -1
  c10::SmallVector<bool, 4> ret_list;    // a result is a list of tensors
  bool immediate = false;                // never recorded, for the reason below
  std::atomic<uint32_t> reason{RSX_WHY_HOST_RESULT};  // RsxReason of the last call that could not be recorded
  std::atomic<bool> structured{false};   // has the default-backend kernel that runs its C++ meta function
  bool random = false;                   // draws numbers: seed and offset travel with the record
  bool host_indices = false;             // accepts index tensors that live on the CPU
  Rule rule = Rule::kAsk;
  EagerKernel eager = nullptr;

  explicit OpInfo(const c10::OperatorHandle& h) : handle(h) {}
  bool writes_arg(size_t i) const { return writes >> i & 1; }
};

OpInfo* op_info(const c10::OperatorHandle& handle);            // made on first use
OpInfo* op_info(const char* name, const char* overload = "");  // "aten::add", "Tensor"
OpInfo* op_info(uint32_t id);
size_t op_count();

// Whether the numbers of a random op make a distribution. Its kernel here, unlike libtorch's, does not look.
bool is_distribution(const OpInfo& op, const IValue* args);

// Kernels that libtorch lacks on the CPU (eager_*.cpp); null for every other op.
EagerKernel eager_kernel(const std::string& name);

}  // namespace rsx
