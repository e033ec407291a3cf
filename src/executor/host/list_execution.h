// ListExecution: the channels and connections of one execution of a list over buffers that all
// ranks reach. Its functions match ProgramExecution. Thread safety: one thread at a time.
#pragma once

#include <vector>

#include "executor/host/list_peer.h"
#include "executor/host/list_worker.h"
#include "executor/host/plan.h"

namespace niccolite::executor::host {

class ListExecution {
 public:
  ListExecution(const Plan& plan, const Reducer& reducer);

  std::vector<ListWorker>& workers() { return workers_; }
  const std::vector<ListWorker>& workers() const { return workers_; }

  void begin();
  void end();
  bool leave();
  bool let_go() { return true; }  // lists go over no network

 private:
  const Plan& plan_;
  size_t peers_of_channel_;
  std::vector<ListPeer> peers_;      // [channel][peer]
  std::vector<ListWorker> workers_;  // they point into peers_ and plan_
};

}  // namespace niccolite::executor::host
