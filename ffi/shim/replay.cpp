// Recorded calls run again (rsx.jit, torch.compile): which tensors a call took, gave and left as gradients, and the way
// from a caller's tensors to a replay's storages and back. What a replay is, Rust knows (capture/src/replay.rs).
#include <torch/csrc/autograd/variable.h>

#include "generator.h"
#include "ops.h"

extern "C" void rsx_recording_hold(uint64_t recording, uint32_t index, RsxStorage* storage);

namespace rsx {
namespace {

struct Geometry {
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;

  Geometry() = default;
  explicit Geometry(const at::Tensor& t)
      : sizes(t.sizes().begin(), t.sizes().end()),
        strides(t.strides().begin(), t.strides().end()),
        offset(t.storage_offset()),
        dtype(t.scalar_type()) {}
  bool fits(const at::Tensor& t) const {
    return t.scalar_type() == dtype && t.sizes() == c10::IntArrayRef(sizes) && t.strides() == c10::IntArrayRef(strides) &&
           t.storage_offset() == offset;
  }
  // A tensor of this geometry over a storage.
  at::Tensor over(const c10::Storage& storage) const {
    auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(kKey),
                                                      c10::scalarTypeToTypeMeta(dtype));
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return t;
  }
};

struct Argument {
  Geometry geometry;
  bool requires_grad, written = false;
};

struct Result {
  enum From { kFresh, kArgument, kSameArgument, kKept, kEarlier, kUndefined } from;
  uint32_t index = 0;  // of the fresh storage, the argument, or the earlier result that is the same tensor
  std::optional<Geometry> geometry;
  at::Tensor kept;  // over a storage that exists outside of calls
};

// A leaf whose gradient the call may set.
struct Leaf {
  at::Tensor tensor;
  bool requires_grad = false, written = false;
  RsxStorage* before = nullptr;  // its gradient when the call began
  bool same = false;             // and the call used that one
  enum Does { kNothing, kSet, kClear } does = kNothing;
  uint32_t fresh = 0;
  std::optional<Geometry> geometry;
};

struct Call {
  uint64_t recording = 0;
  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<Leaf> leaves;
  std::vector<uint32_t> fresh;      // storages of the recording
  std::vector<int64_t> fresh_bytes;
  const void* replay = nullptr;
  uint64_t advance = 0;

  Call() = default;
  Call(const Call&) = delete;
  ~Call() {
    if (replay) rsx_replay_release(replay);
  }
};

struct Calls {
  std::mutex mutex;
  std::unordered_map<int64_t, std::shared_ptr<Call>> map;
  int64_t next = 1;
  std::vector<Leaf> leaves;  // of the call being recorded
};
Calls& calls() {
  static auto* c = new Calls();  // programs may be dropped while the process ends
  return *c;
}

std::shared_ptr<Call> call_of(int64_t id) {
  auto& c = calls();
  std::lock_guard lock(c.mutex);
  const auto it = c.map.find(id);
  TORCH_CHECK(it != c.map.end(), "rsx: no recorded call ", id);
  return it->second;
}

RsxStorage* grad_of(const at::Tensor& leaf) {
  const auto& g = leaf.grad();
  return g.defined() && is_rsx(g) ? handle_of(g) : nullptr;
}

// The call begins: remembers the gradients of leaves.
void enter(const std::vector<at::Tensor>& leaves) {
  std::vector<Leaf> kept;
  for (const auto& t : leaves) {
    Leaf leaf;
    leaf.tensor = t;
    leaf.requires_grad = t.requires_grad();
    leaf.before = grad_of(t);
    kept.push_back(std::move(leaf));
  }
  std::lock_guard lock(calls().mutex);
  calls().leaves = std::move(kept);
}

struct Place {
  bool found, made, written;
  uint32_t index;
};
Place place(const Call& call, RsxStorage* storage) {
  const int64_t p = rsx_recording_place(call.recording, storage);
  return {p >= 0, p >= 0 && (p >> 32 & 1), p >= 0 && (p >> 33 & 1), static_cast<uint32_t>(p)};
}

uint32_t fresh_index(Call& call, uint32_t storage, int64_t nbytes) {
  for (uint32_t k = 0; k < call.fresh.size(); ++k)
    if (call.fresh[k] == storage) return k;
  call.fresh.push_back(storage);
  call.fresh_bytes.push_back(nbytes);
  return static_cast<uint32_t>(call.fresh.size() - 1);
}

Result result(Call& call, const std::vector<at::Tensor>& args, const std::vector<at::Tensor>& outs, size_t k) {
  Result r;
  const auto& t = outs[k];
  if (!t.defined()) {
    r.from = Result::kUndefined;
    return r;
  }
  for (size_t i = 0; i < k; ++i) {
    if (outs[i].defined() && outs[i].is_same(t)) {
      r.from = Result::kEarlier;
      r.index = i;
      return r;
    }
  }
  TORCH_CHECK_VALUE(is_rsx(t) && t.layout() == at::kStrided && !t.is_conj() && !t.is_neg(),
                    "it returns a tensor that is not a plain tensor of the device");
  auto* handle = handle_of(t);
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].is_same(t) || handle_of(args[i]) == handle) {
      r.from = args[i].is_same(t) ? Result::kSameArgument : Result::kArgument;
      r.index = i;
      r.geometry.emplace(t);
      return r;
    }
  }
  const auto p = place(call, handle);
  if (p.found && p.made) {
    r.from = Result::kFresh;
    r.index = fresh_index(call, p.index, storage_of(t.unsafeGetTensorImpl())->nbytes());
    r.geometry.emplace(t);
  } else {
    r.from = Result::kKept;
    r.kept = t.is_leaf() && t.requires_grad() ? t : t.detach();
  }
  return r;
}

void settle(Call& call, Leaf& leaf) {
  leaf.written = place(call, handle_of(leaf.tensor)).written;
  auto* after = grad_of(leaf.tensor);
  if (!after) {
    leaf.does = leaf.before ? Leaf::kClear : Leaf::kNothing;
    return;
  }
  const auto p = place(call, after);
  if (p.found && p.made) {
    leaf.does = Leaf::kSet;
    leaf.geometry.emplace(leaf.tensor.grad());
    leaf.fresh = fresh_index(call, p.index, storage_of(leaf.tensor.grad().unsafeGetTensorImpl())->nbytes());
    // A gradient that the call only replaces may be any.
    leaf.same = leaf.before && place(call, leaf.before).found;
    return;
  }
  TORCH_CHECK_VALUE(after == leaf.before, "it assigns a gradient that it has not computed");
  leaf.same = p.found;
}

// The call has returned: what it took and gave.
int64_t leave(int64_t recording, const std::vector<at::Tensor>& args, const std::vector<at::Tensor>& outs) {
  auto call = std::make_shared<Call>();
  call->recording = static_cast<uint64_t>(recording);
  std::vector<RsxStorage*> handles;
  for (const auto& t : args) {
    handles.push_back(handle_of(t));
    call->arguments.push_back({Geometry(t), t.requires_grad(), place(*call, handles.back()).written});
  }
  for (size_t k = 0; k < outs.size(); ++k) call->results.push_back(result(*call, args, outs, k));
  auto& c = calls();
  {
    std::lock_guard lock(c.mutex);
    call->leaves = std::move(c.leaves);
    c.leaves.clear();
  }
  for (auto& leaf : call->leaves) settle(*call, leaf);
  rsx_recording_bind(call->recording, handles.data(), handles.size(), call->fresh.data(), call->fresh.size());
  std::lock_guard lock(c.mutex);
  c.map[c.next] = call;
  return c.next++;
}

// The call is replayed by `replay` (an address whose reference it takes), drawing `advance` random numbers.
void install(int64_t id, int64_t replay, int64_t advance) {
  const auto call = call_of(id);
  call->replay = reinterpret_cast<const void*>(static_cast<uintptr_t>(replay));
  call->advance = static_cast<uint64_t>(advance);
}

void drop(int64_t id) {
  std::shared_ptr<Call> dropped;
  auto& c = calls();
  std::lock_guard lock(c.mutex);
  if (const auto it = c.map.find(id); it != c.map.end()) {
    dropped = std::move(it->second);
    c.map.erase(it);
  }
}

// ---- calls as numbers, for programs that are saved ----

void put(std::vector<int64_t>& out, const std::optional<Geometry>& g) {
  out.push_back(g ? static_cast<int64_t>(g->sizes.size()) : -1);
  if (!g) return;
  out.insert(out.end(), g->sizes.begin(), g->sizes.end());
  out.insert(out.end(), g->strides.begin(), g->strides.end());
  out.push_back(g->offset);
  out.push_back(static_cast<int64_t>(g->dtype));
}

std::vector<int64_t> spec(int64_t id) {
  const auto call = call_of(id);
  TORCH_CHECK_VALUE(call->leaves.empty(), "a program that sets gradients cannot be saved");
  std::vector<int64_t> out{static_cast<int64_t>(call->arguments.size()), static_cast<int64_t>(call->results.size()),
                           static_cast<int64_t>(call->fresh.size()), static_cast<int64_t>(call->advance)};
  for (const auto& a : call->arguments) {
    put(out, a.geometry);
    out.push_back(a.written);
  }
  for (const auto& r : call->results) {
    TORCH_CHECK_VALUE(r.from != Result::kKept, "a program that returns a tensor it has not computed cannot be saved");
    out.push_back(r.from);
    out.push_back(r.index);
    put(out, r.geometry);
  }
  for (size_t k = 0; k < call->fresh.size(); ++k) {
    out.push_back(call->fresh[k]);
    out.push_back(call->fresh_bytes[k]);
  }
  return out;
}

class SpecReader {
 public:
  explicit SpecReader(const std::vector<int64_t>& words) : words_(words) {}
  int64_t next() {
    TORCH_CHECK_VALUE(at_ < words_.size(), "the program is cut short");
    return words_[at_++];
  }
  std::optional<Geometry> geometry() {
    const auto n = next();
    if (n < 0) return std::nullopt;
    TORCH_CHECK_VALUE(n <= 64, "the program is damaged: rank");
    Geometry g;
    for (int64_t d = 0; d < n; ++d) g.sizes.push_back(next());
    for (int64_t d = 0; d < n; ++d) g.strides.push_back(next());
    g.offset = next();
    g.dtype = static_cast<at::ScalarType>(next());
    return g;
  }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

int64_t restore(int64_t recording, const std::vector<int64_t>& words) {
  SpecReader in(words);
  auto call = std::make_shared<Call>();
  call->recording = static_cast<uint64_t>(recording);
  const auto nargs = in.next(), nresults = in.next(), nfresh = in.next();
  in.next();  // numbers drawn: given again when the replay is installed
  for (int64_t k = 0; k < nargs; ++k) {
    auto g = in.geometry();
    TORCH_CHECK_VALUE(g, "the program is damaged: an argument");
    call->arguments.push_back({std::move(*g), false, in.next() != 0});
  }
  for (int64_t k = 0; k < nresults; ++k) {
    Result r;
    r.from = static_cast<Result::From>(in.next());
    r.index = static_cast<uint32_t>(in.next());
    r.geometry = in.geometry();
    const int64_t most = r.from == Result::kFresh ? nfresh : r.from == Result::kEarlier ? k : nargs;
    TORCH_CHECK_VALUE(r.from == Result::kUndefined || (r.from != Result::kKept && r.index < most), "the program is damaged: a result");
    call->results.push_back(std::move(r));
  }
  for (int64_t k = 0; k < nfresh; ++k) {
    call->fresh.push_back(static_cast<uint32_t>(in.next()));
    call->fresh_bytes.push_back(in.next());
  }
  auto& c = calls();
  std::lock_guard lock(c.mutex);
  c.map[c.next] = call;
  return c.next++;
}

void hold(int64_t recording, int64_t index, const at::Tensor& contents) {
  rsx_recording_hold(static_cast<uint64_t>(recording), static_cast<uint32_t>(index), handle_of(contents));
}

// ---- replaying ----

bool fits(const Call& call, const std::vector<at::Tensor>& args) {
  if (args.size() != call.arguments.size()) return false;
  for (size_t k = 0; k < args.size(); ++k) {
    const auto& t = args[k];
    const auto& a = call.arguments[k];
    constexpr c10::DispatchKeySet kOdd({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
    if (!is_rsx(t) || t.layout() != at::kStrided || t.key_set().has_any(kOdd) || !a.geometry.fits(t) ||
        t.requires_grad() != a.requires_grad)
      return false;
  }
  for (const auto& leaf : call.leaves) {
    const auto& g = leaf.tensor.grad();
    if (leaf.tensor.requires_grad() != leaf.requires_grad || g.defined() != (leaf.before != nullptr)) return false;
    if (leaf.same && (!is_rsx(g) || handle_of(g) != leaf.before)) return false;
  }
  return true;
}

constexpr int64_t kDone = 0, kOther = 1, kStale = 2;

// Runs the call on these arguments: (0, results), or (1 or 2, nothing) if they are not like those it was recorded with,
// or something it relies on is gone.
std::tuple<int64_t, std::vector<at::Tensor>> replay(int64_t id, const std::vector<at::Tensor>& args) {
  check_fork();
  const auto call = call_of(id);
  TORCH_CHECK(call->replay, "rsx: call ", id, " has no replay");
  if (!fits(*call, args)) return {kOther, {}};
  c10::SmallVector<RsxStorage*, 16> handles;
  for (const auto& t : args) handles.push_back(handle_of(t));
  Seed seed;
  if (call->advance) {
    auto* g = at::check_generator<Generator>(default_generator());
    std::lock_guard lock(g->mutex_);
    seed = g->reserve(call->advance);
  }
  c10::SmallVector<RsxStorage*, 32> fresh(call->fresh.size(), nullptr);
  const auto status = check(rsx_replay(call->replay, handles.data(), handles.size(), seed.seed, seed.offset, fresh.data()));
  if (status != 0) {
    if (call->advance) {  // the call draws its numbers when it is recorded again
      auto* g = at::check_generator<Generator>(default_generator());
      std::lock_guard lock(g->mutex_);
      if (g->get_offset() == seed.offset + call->advance) g->set_offset(seed.offset);
    }
    return {kStale, {}};
  }
  c10::SmallVector<c10::Storage, 32> storages;
  for (size_t k = 0; k < fresh.size(); ++k) storages.push_back(storage(fresh[k], call->fresh_bytes[k]));
  for (size_t k = 0; k < args.size(); ++k) {
    if (!call->arguments[k].written) continue;
    arm(storage_of(args[k].unsafeGetTensorImpl()));
    if (!args[k].is_inference()) args[k].unsafeGetTensorImpl()->bump_version();
  }
  for (auto& leaf : call->leaves) {
    if (leaf.written) {
      arm(storage_of(leaf.tensor.unsafeGetTensorImpl()));
      leaf.tensor.unsafeGetTensorImpl()->bump_version();
    }
    if (leaf.does == Leaf::kClear) leaf.tensor.mutable_grad().reset();
    else if (leaf.does == Leaf::kSet) leaf.tensor.mutable_grad() = leaf.geometry->over(storages[leaf.fresh]);
  }
  std::vector<at::Tensor> outs;
  outs.reserve(call->results.size());
  for (const auto& r : call->results) {
    switch (r.from) {
      case Result::kFresh:
        outs.push_back(r.geometry->over(storages[r.index]));
        break;
      case Result::kArgument:
        outs.push_back(r.geometry->over(args[r.index].storage()));
        break;
      case Result::kSameArgument:
        outs.push_back(args[r.index]);
        break;
      case Result::kKept:
        outs.push_back(r.kept.requires_grad() ? r.kept : r.kept.detach());
        break;
      case Result::kEarlier:
        outs.push_back(outs[r.index]);
        break;
      case Result::kUndefined:
        outs.emplace_back();
        break;
    }
  }
  return {kDone, std::move(outs)};
}

}  // namespace

void register_replay(torch::Library& own) {
  own.def("call_begin(Tensor[] leaves) -> ()", [](std::vector<at::Tensor> leaves) { enter(leaves); });
  own.def("call_end(int recording, Tensor[] args, Tensor[] outs) -> int",
          [](int64_t recording, std::vector<at::Tensor> args, std::vector<at::Tensor> outs) { return leave(recording, args, outs); });
  own.def("call_install(int call, int replay, int advance) -> ()", &install);
  own.def("call_spec(int call) -> int[]", &spec);
  own.def("call_restore(int recording, int[] spec) -> int",
          [](int64_t recording, std::vector<int64_t> words) { return restore(recording, words); });
  own.def("recording_hold(int recording, int index, Tensor contents) -> ()",
          [](int64_t recording, int64_t index, const at::Tensor& contents) { hold(recording, index, contents); });
  own.def("call_drop(int call) -> ()", &drop);
  own.def("call_replay(int call, Tensor[] args) -> (int, Tensor[])",
          [](int64_t id, std::vector<at::Tensor> args) { return replay(id, args); });
}

}  // namespace rsx

// Rust asks for ops by name when it loads a program.
extern "C" int64_t rsx_cpp_op(const char* name) {
  try {
    const std::string full = name;
    const auto dot = full.find('.', full.find("::"));
    const auto base = full.substr(0, dot), overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    const auto handle = c10::Dispatcher::singleton().findSchema({base, overload});
    return handle ? static_cast<int64_t>(rsx::op_info(*handle)->id) : -1;
  } catch (const std::exception&) {
    return -1;
  }
}
