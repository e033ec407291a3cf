// Service: answers questions about the job at NCCL_RAS_ADDR, from ncclras, niccolite ras or nc. All
// processes of a machine listen there. One of them gets each client, and asks the others. It has a
// thread of its own, from the first communicator on until the process exits, and one for each
// report that is being collected. So a client that waits long for an answer delays no other client.
// Thread safety: any thread.
//
// Nothing here fails a program: if another process has the address, or another job shares it, the
// process with rank 0 logs one line. Clients cost a bounded number of descriptors and bytes, and
// clients that do not read are dropped.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/wait.h"
#include "ras/report.h"

namespace niccolite::ras {

struct ServiceOptions {
  Versions versions;
  std::string address;                    // "localhost:28028"
  bool tells_of_other_jobs = false;       // that listen at the address, too, and came first
  size_t most_unread = size_t{16} << 20;  // bytes of answers and events that a client has not read
  /// Collects the job's reports; tests pass another function. Called on several threads at once.
  std::function<Job(const Deadline& deadline, Abort& cancel)> collect = &ras::collect;
};

class Service {
 public:
  static Result<std::unique_ptr<Service>> start(ServiceOptions options);
  /// Ends at once, whatever is being collected.
  virtual ~Service() = default;
};

/// Starts the service of this process, once, unless NCCL_RAS_ENABLE is 0. `rank`: of the
/// communicator that is about to be made.
void start_service(const Versions& versions, int rank);

}  // namespace niccolite::ras
