// ConnectionEvents: writes the events of a communicator's connections to its event stream, and
// tells a profiler, if there is one. Thread safety: any thread.
#pragma once

#include <atomic>
#include <memory>

#include "observe/recorder.h"
#include "profiling/proxy_profile.h"
#include "transport/observer.h"

namespace niccolite::profiling {

class ConnectionEvents final : public transport::Observer {
 public:
  explicit ConnectionEvents(std::shared_ptr<observe::Recorder> recorder)
      : recorder_(std::move(recorder)) {}

  /// Called once: from now on events go to `profile`, too.
  void tell(std::shared_ptr<ProxyProfile> profile);

  void connected(int peer) override;
  void step(const transport::ProxyStep& step, transport::ProxyStepState state) override;
  bool wants_state() const override;
  void state(transport::ProxyState state) override;
  void* handle_for_network(const transport::ProxyStep& step) override;

 private:
  // acquire: pairs with tell().
  ProxyProfile* profile() const { return told_.load(std::memory_order_acquire); }

  const std::shared_ptr<observe::Recorder> recorder_;
  std::shared_ptr<ProxyProfile> profile_;
  std::atomic<ProxyProfile*> told_{nullptr};
};

}  // namespace niccolite::profiling
