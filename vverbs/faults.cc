// Faults and rates of ports (options.h).
#include <algorithm>

#include "engine.h"
#include "objects.h"
#include "options.h"

namespace vverbs {

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr auto kDelay = milliseconds(50);  // of a message that is late

// Nothing completes from now on, not even as flushed: programs hear of it by the event alone.
void remove_device(Context& context) {
  context.gone = is_removed(context.index) = true;
  for (Port& port : context.ports) port.up = false;
  raise_event(context, IBV_EVENT_DEVICE_FATAL, nullptr, nullptr, nullptr, 0);
}

}  // namespace

Port& port_of(Context& context, QueuePair& pair) {
  return context.ports[static_cast<size_t>(pair.attributes.port_num - 1)];
}

std::atomic<bool>& is_removed(int device) {
  static std::atomic<bool> removed[kMostDevices];
  return removed[device];
}

bool pass_faults(Context& context, QueuePair& pair, Request& request) {
  Port& port = port_of(context, pair);
  if (!request.counted) {
    request.counted = true;
    const uint64_t number = port.messages++;
    bool passes = true;
    for (const Fault& fault : options().faults) {
      if (fault.device != context.index || fault.port != pair.attributes.port_num ||
          fault.after != number)
        continue;
      switch (fault.kind) {
        case FaultKind::Down:
        case FaultKind::Flap:
          port.up = false;
          if (fault.kind == FaultKind::Flap) port.up_again = Clock::now() + milliseconds(100);
          raise_event(context, IBV_EVENT_PORT_ERR, nullptr, nullptr, nullptr, fault.port);
          break;
        case FaultKind::Drop:
          port.drops = true;
          break;
        case FaultKind::Slow:
          port.slow = 10;
          break;
        case FaultKind::Corrupt:
          port.corrupts = true;
          break;
        case FaultKind::CorruptGpu:
          port.corrupts_gpu = true;
          break;
        case FaultKind::Late:
          port.free_at = std::max(port.free_at, Clock::now()) + kDelay;
          passes = false;
          break;
        case FaultKind::Lose:
          if (pair.qp().qp_type == IBV_QPT_RC) lose_requester(pair);
          passes = false;
          break;
        case FaultKind::Refuse:
          request.refused = true;
          break;
        case FaultKind::Gone:
          remove_device(context);
          break;
        case FaultKind::Flush:
          raise_event(context, IBV_EVENT_QP_FATAL, &pair, nullptr, nullptr, 0);
          fail_pair(context, pair);
          return false;
        case FaultKind::MemoryRefused:
        case FaultKind::GpuMemoryRefused:
          break;
      }
    }
    if (!passes) return false;
  }
  return port.up && !port.drops;
}

bool is_of_gpu(Context& context, uint32_t key) {
  const auto found = context.regions.find(key);
  return found != context.regions.end() && found->second->mapping != nullptr;
}

void occupy(Port& port, uint64_t bytes) {
  const double rate = options().rate_gbit > 0 ? options().rate_gbit / port.slow
                      : port.slow > 1         ? options().speed_gbit / port.slow
                                              : 0;
  if (rate > 0)
    port.free_at = std::max(port.free_at, Clock::now()) +
                   duration_cast<Clock::duration>(
                       std::chrono::duration<double>(static_cast<double>(bytes) * 8e-9 / rate));
}

}  // namespace vverbs
