// A record back into an operator call, on CPU tensors over the storages' memory.
#pragma once
#include "op_info.h"
#include "words.h"

namespace rsx {

class Decoder {
 public:
  explicit Decoder(const RsxEval& eval) : eval_(eval), word_(eval.words + 1), datum_(eval.data) {}
  IValue next();
  // The trailing seed entry of a random op.
  Seed seed();

 private:
  uint64_t word() { return *word_++; }
  uint64_t datum() { return *datum_++; }
  double real(uint64_t bits);
  at::Tensor tensor(uint64_t head);
  at::Tensor scalar(uint64_t head);
  IValue list(uint64_t head);
  std::string string(uint64_t length);

  const RsxEval& eval_;
  const uint64_t* word_;
  const uint64_t* datum_;
};

}  // namespace rsx
