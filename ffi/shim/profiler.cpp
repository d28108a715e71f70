// torch.profiler with ProfilerActivity.PrivateUse1: what the device ran, as its own lane.
//
// Recording is asynchronous, so device times cannot be taken around the ops of the host: they come from the executor's
// timeline. Names are those of kernels and of ops that ran through the eager engine.
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>) && __has_include(<libkineto.h>)
#define USE_KINETO 1
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <libkineto.h>
#include <output_base.h>

#include "timeline_abi.h"

namespace rsx {
namespace {

using libkineto::ActivityType;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    rsx_timeline_start();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    status_ = libkineto::TraceStatus::PROCESSING;
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "rsx");
    buffer_->gpuOpCount = 0;
    rsx_timeline_stop(this, [](void* self, uint32_t lane, const char* name, size_t len, uint64_t start, uint64_t duration) {
      static_cast<Session*>(self)->add(lane, std::string(name, len), start, duration);
    });
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger& logger) override {
    for (const auto& a : buffer_->activities) a->log(logger);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "rsx", "rsx 0"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {{RSX_LANE_COMPILER, 2, 0, "compiler"}, {RSX_LANE_EXECUTOR, 1, 0, "segments"}, {RSX_LANE_DEVICE, 0, 0, "kernels"}};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

 private:
  void add(uint32_t lane, std::string name, uint64_t start, uint64_t duration) {
    // The host's part is in the ops' own events.
    if (lane == RSX_LANE_HOST) return;
    const auto type = lane == RSX_LANE_DEVICE ? ActivityType::CONCURRENT_KERNEL : ActivityType::PRIVATEUSE1_RUNTIME;
    auto a = std::make_unique<libkineto::GenericTraceActivity>(buffer_->span, type, name);
    a->startTime = static_cast<int64_t>(start);
    a->endTime = static_cast<int64_t>(start + duration);
    a->device = 0;
    a->resource = static_cast<int32_t>(lane);
    a->threadId = static_cast<int32_t>(lane);
    buffer_->gpuOpCount += lane == RSX_LANE_DEVICE;
    buffer_->activities.push_back(std::move(a));
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    for (const auto a : activities_)
      if (wanted.count(a)) return std::make_unique<Session>();
    return nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "rsx";
  const std::set<ActivityType> activities_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace

void register_profiler() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      []() -> std::unique_ptr<libkineto::IActivityProfiler> { return std::make_unique<Profiler>(); });
}

}  // namespace rsx

#else

namespace rsx {
void register_profiler() {}  // this torch has no place for it
}  // namespace rsx

#endif
