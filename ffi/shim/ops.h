// Explicit kernels: what is geometry, host traffic or storage surgery rather than a recorded op.
#pragma once
#include "run.h"

namespace rsx {

// Registers one family each; `impl(name, function)` notes the name, so that no boxed kernel follows.
class Registrar {
 public:
  explicit Registrar(torch::Library& lib) : lib_(lib) {}
  template <class F>
  void impl(const char* name, F* function) {
    lib_.impl(name, function);
    done_.insert(std::string("aten::") + name);
  }
  void boxed(const std::string& name, torch::CppFunction&& function) {
    lib_.impl(name.c_str(), std::move(function));
    done_.insert("aten::" + name);
  }
  bool done(const std::string& full_name) const { return done_.count(full_name) != 0; }

 private:
  torch::Library& lib_;
  std::unordered_set<std::string> done_;
};

void register_factories(Registrar& r);  // ops_factory.cpp
void register_views(Registrar& r);      // ops_view.cpp
void register_copies(Registrar& r);     // ops_copy.cpp
void register_storages(Registrar& r);   // ops_storage.cpp
void register_indexing(Registrar& r);   // ops_index.cpp
void register_attention(Registrar& r);
void register_linear(Registrar& r, torch::Library& autograd);  // linear.cpp
void register_layouts(Registrar& r, torch::Library& autograd);  // ops_layout.cpp
void register_device();                 // device.cpp
void register_host_allocator();         // host_alloc.cpp
void register_autocast(torch::Library& lib);
void register_replay(torch::Library& own);  // replay.cpp

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking);

}  // namespace rsx
