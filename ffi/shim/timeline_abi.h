// The timeline of rsx_capture::timeline, for the profiler.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
enum RsxLane : uint32_t { RSX_LANE_HOST = 0, RSX_LANE_COMPILER = 1, RSX_LANE_EXECUTOR = 2, RSX_LANE_DEVICE = 3 };
void rsx_timeline_start(void);
// Ends collecting; `event` is called for each event in order of start. Times in nanoseconds since the epoch.
typedef void (*RsxTimelineEvent)(void* ctx, uint32_t lane, const char* name, size_t len, uint64_t start, uint64_t duration);
void rsx_timeline_stop(void* ctx, RsxTimelineEvent event);
}
