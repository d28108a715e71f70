// The whole contract between the C++ shim and Rust (ffi/src/abi.rs): plain C, nothing of torch.
//
// Nothing unwinds across this line. Rust entries return a Status and keep the error for
// rsx_take_error; C++ entries (rsx_cpp_*) return an error text or null.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// One PyTorch storage as Rust knows it. The pointer is a counted reference.
typedef struct RsxStorage RsxStorage;

// Negative results of an entry that can fail: the kind of exception to throw.
enum RsxStatus : int32_t {
  RSX_OK = 0,
  RSX_ERR_USER = -1,         // RuntimeError
  RSX_ERR_UNSUPPORTED = -2,  // NotImplementedError
  RSX_ERR_INTERNAL = -3,     // RuntimeError that asks for a report
  RSX_ERR_MEMORY = -4,       // torch.OutOfMemoryError
  RSX_ERR_INDEX = -5,        // IndexError
};
// The text of this thread's last failure; valid until its next call.
const char* rsx_take_error(void);

// ---- storages -------------------------------------------------------------------------------
RsxStorage* rsx_storage_new(uint64_t nbytes);  // no memory yet; the reference is the caller's
void rsx_storage_release(void* storage);       // any thread, forked child, exit; never blocks
void* rsx_storage_token(RsxStorage* storage);  // unique non-null address that is no memory
RsxStorage* rsx_storage_find(const void* address);  // by token or exposed address; borrowed or null
int32_t rsx_storage_resize(RsxStorage* storage, uint64_t nbytes);  // keeps contents
// Waits for the value and pins it at an address for the storage's whole life (`data_ptr()`).
int32_t rsx_storage_expose(RsxStorage* storage, void** address);
// Replaces the whole content from host memory; never cuts: pending readers keep the old version.
int32_t rsx_storage_upload(RsxStorage* storage, const void* src, uint64_t nbytes);
// Waits for the value and copies a range of it to host memory. `cause`: an RsxCause.
int32_t rsx_storage_read(RsxStorage* storage, uint64_t offset, uint64_t nbytes, void* dst, uint32_t cause);

// ---- recording ------------------------------------------------------------------------------
enum RsxOutKind : uint8_t { RSX_OUT_TENSOR = 0, RSX_OUT_UNDEF = 1, RSX_OUT_LIST = 2, RSX_OUT_INT = 3 };
enum : size_t { RSX_MAX_RANK = 8 };
// What one result looks like (rsx_lazy::OutMeta). LIST: `nbytes` entries follow. INT: the value is
// `nbytes`.
typedef struct {
  int64_t sizes[RSX_MAX_RANK];
  int64_t strides[RSX_MAX_RANK];
  uint64_t nbytes;
  uint8_t rank;
  uint8_t dtype;  // c10::ScalarType
  uint8_t kind;
  uint8_t pad[5];
} RsxOut;

enum RsxSigFlags : uint32_t { RSX_SIG_IMMEDIATE = 1 };  // cannot be recorded: run at once on the CPU
// The results of an interned signature (op + operand metadata + attributes). Valid until this
// thread's next call of rsx_record.
typedef struct {
  const RsxOut* outs;
  size_t nouts;
  size_t nfresh;  // how many of them are tensors: storages that recording creates
} RsxResults;

typedef struct {
  const uint64_t* words;  // the signature; layout in words.h
  size_t nwords;
  RsxStorage* const* storages;  // distinct, in order of first use
  const bool* written;          // per storage
  size_t nstorages;
  const uint64_t* data;  // operand values that are not part of the signature
  size_t ndata;
  uint32_t op;
} RsxRecord;

enum RsxRecorded : int32_t {
  RSX_REC_DONE = 0,  // recorded: the outputs' storages are the caller's references
  RSX_REC_MISS = 1,  // unknown signature: infer, insert, record again
  RSX_REC_IMMEDIATE = 2,
};
// Fresh storages beyond `cap` are kept; rsx_take_fresh hands all of them out.
int32_t rsx_record(const RsxRecord* record, RsxStorage** fresh, size_t cap, RsxResults* results);
void rsx_take_fresh(RsxStorage** fresh);
void rsx_sig_insert(const uint64_t* words, size_t nwords, uint32_t op, const RsxOut* outs, size_t nouts, uint32_t flags);
// Registers an operator by "aten::name.overload": a small number, and a hash that is the same in
// every process (the first word of its signatures).
// `args`: the arguments' names, each followed by a comma. `written`: per argument; `ret_arg`: per result, the written argument it is, or -1; `ret_list`:
// per result, whether it is a list of tensors.
uint32_t rsx_op_register(const char* name, size_t len, const char* args, size_t args_len, const bool* written,
                         size_t nargs, const int8_t* ret_arg, const bool* ret_list, size_t nrets, uint64_t* hash);
// How a number argument is recorded (rsx_lazy::aten::structural).
enum RsxEncoding : uint32_t {
  RSX_ENCODE_DATA = 0,           // operand data: may change without a new signature
  RSX_ENCODE_STRUCTURE = 1,      // in the words
  RSX_ENCODE_INT_STRUCTURE = 2,  // in the words if it is an integer
};
uint32_t rsx_op_encoding(const char* name, size_t len, const char* argument, size_t argument_len);
// Whether compiled programs know the op (a row in rsx_lazy::aten).
int rsx_op_has_lowering(const char* name, size_t len);

// ---- cuts, waits, counters --------------------------------------------------------------------
enum RsxCause : uint32_t {
  RSX_CAUSE_MARK_STEP = 0,
  RSX_CAUSE_OPTIMIZER = 1,
  RSX_CAUSE_ITEM = 2,
  RSX_CAUSE_COPY_TO_HOST = 3,
  RSX_CAUSE_PRINT = 4,
  RSX_CAUSE_DATA_POINTER = 5,
  RSX_CAUSE_DYNAMIC_SHAPE = 6,
  RSX_CAUSE_FALLBACK = 7,
  RSX_CAUSE_SYNCHRONIZE = 8,
  RSX_CAUSE_EVENT = 9,
  RSX_CAUSE_STORAGE = 10,
};
int32_t rsx_cut(uint32_t cause);         // submits what is pending; does not wait for it
int32_t rsx_synchronize(uint32_t cause); // cuts, then waits for everything
enum RsxReason : uint32_t {
  RSX_WHY_HOST_RESULT = 0,    // returns something that is no tensor
  RSX_WHY_DYNAMIC_SHAPE = 1,  // the result's shape depends on values
  RSX_WHY_NO_META = 2,        // PyTorch cannot tell the result's shape without running it
  RSX_WHY_META_FAILED = 3,
  RSX_WHY_PYTHON = 4,         // a kernel outside aten, maybe written in Python
  RSX_WHY_OVERLAP = 5,        // writes memory that overlaps itself or another argument
};
void rsx_note_fallback(uint32_t op, uint32_t reason);
int rsx_bad_fork(void);  // 1 in a child of a process that had used the device

// Events order by segments: a ticket is done when every segment up to it has run.
uint64_t rsx_event_record(void);
int rsx_event_done(uint64_t ticket);
int32_t rsx_event_wait(uint64_t ticket);
double rsx_event_ms(uint64_t from, uint64_t to);  // negative: one is not done, or long forgotten

typedef struct {
  uint64_t allocated, peak, reserved, allocations, system_allocations, total;
} RsxMemory;
void rsx_memory(RsxMemory* out);
void rsx_memory_reset_peak(void);
void rsx_memory_trim(void);

// ---- recorded calls ----------------------------------------------------------------------------
// Where a recording has a storage: index | made by the call << 32 | written << 33; -1 if it has not.
// Forgets all signatures: outputs are predicted anew.
void rsx_sig_forget(void);
// Ends the part of a while_loop that this thread records: its number.
int32_t rsx_loop_part(RsxStorage* const* args, size_t nargs, RsxStorage* const* outs, size_t nouts);
int64_t rsx_recording_place(uint64_t recording, RsxStorage* storage);
void rsx_recording_bind(uint64_t recording, RsxStorage* const* args, size_t nargs, const uint32_t* fresh, size_t nfresh);
// 0: done, `fresh` holds new references; 1: something the replay relies on is gone.
int32_t rsx_replay(const void* replay, RsxStorage* const* args, size_t nargs, uint64_t seed, uint64_t offset,
                   RsxStorage** fresh);
void rsx_replay_release(const void* replay);

// ---- random numbers ---------------------------------------------------------------------------
enum RsxRandom : uint32_t {
  RSX_RANDOM_UNIFORM = 0,      // a + u * (b - a)
  RSX_RANDOM_NORMAL = 1,       // mean a, deviation b
  RSX_RANDOM_BERNOULLI = 2,    // 1 with probability a
  RSX_RANDOM_INT = 3,          // integers of [a, b); the bounds are int64 bits in a and b
  RSX_RANDOM_EXPONENTIAL = 4,  // rate a
};
// n elements of `dtype` (c10::ScalarType), contiguous. Returns 0, or -1 for a dtype it cannot fill.
int32_t rsx_philox_fill(uint32_t kind, int32_t dtype, void* dst, uint64_t n, uint64_t seed, uint64_t offset, double a,
                        double b);

// ---- implemented in C++, called by Rust ---------------------------------------------------------
typedef struct {
  uint32_t op;
  uint32_t pad;
  const RsxOut* outs;
  size_t nouts;
  const uint64_t* words;
  size_t nwords;
  void* const* ptrs;  // per storage, its memory
  const uint64_t* nbytes;
  size_t nstorages;
  const uint64_t* data;
  size_t ndata;
  void* ctx;  // for the callbacks below
} RsxEval;
// Runs one op with libtorch's kernels. On failure `text` is an error text to give to rsx_cpp_free.
int32_t rsx_cpp_eval(const RsxEval* eval, char** text);
void rsx_cpp_free(char* text);
// Registers everything with PyTorch; once. Null, or an error text.
char* rsx_cpp_init(void);
// Nanoseconds per call of a named micro benchmark (benches/), or a negative number.
double rsx_cpp_bench(const char* what, int64_t n);

// ---- implemented in Rust, called by rsx_cpp_eval ------------------------------------------------
// Memory of `nbytes` for fresh output `index`, to be filled; null when there is none left.
void* rsx_eager_allocate(void* ctx, uint32_t index, uint64_t nbytes);
// Hands over memory that already holds the output in the predicted layout.
void rsx_eager_adopt(void* ctx, uint32_t index, void* ptr, uint64_t nbytes, void* owner, void (*drop)(void*));
}
