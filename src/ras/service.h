// Service: answers whoever asks at NCCL_RAS_ADDR what the job is doing: ncclras, niccolite ras, nc.
// All processes of a machine listen there, and one of them gets each client; it asks the others. A
// thread of its own, from the first communicator on until the process exits, and one for each
// report that is collected, so that whoever waits long for an answer keeps nobody else waiting.
// Thread safety: any thread.
//
// Nothing here fails a program: where another process has the address, or another job shares it,
// one line of the log says so, of the process with rank 0. Clients cost a bounded number of
// descriptors and bytes, and clients that do not read are dropped.
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
  /// Job collect(), but for tests. On several threads at once.
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
