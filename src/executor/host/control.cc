#include "executor/host/control.h"

#include <atomic>

namespace niccolite::executor::host {

Command command_in(ControlWords& control) {
  // acquire: pairs with the communicator's release store; nothing of the connections is used
  // after it.
  return static_cast<Command>(std::atomic_ref(control.abort).load(std::memory_order_acquire));
}

bool report(ControlWords& control, const Report& news) {
  const std::atomic_ref word(control.report);
  // relaxed, here and below: the word says all there is to say; nothing else is published by it.
  uint64_t standing = word.load(std::memory_order_relaxed);
  for (;;) {
    const ReportKind kind = decode_report(standing).kind;
    const bool yields = kind == ReportKind::None || (is_wait(kind) && !is_wait(news.kind));
    if (!yields) return false;
    if (word.compare_exchange_weak(standing, encode(news), std::memory_order_relaxed)) return true;
  }
}

}  // namespace niccolite::executor::host
