// Bridge: joins the processes of a run that share no memory, since they are on several machines or
// somebody else has started them. The meeting and the links are the library's own (bootstrap/):
// authenticated, and a process that ends is named on all others.
//
// Thread safety: exchange() by one thread at a time; end() by any.
#pragma once

#include <memory>
#include <span>

#include "base/wait.h"
#include "bootstrap/member.h"

namespace niccolite::perf {

class Bridge {
 public:
  /// Collective over all processes, which have the same id. Waits for them as long as an init does.
  static Result<std::unique_ptr<Bridge>> meet(const bootstrap::UniqueId& id, int process,
                                              int processes);

  int process() const { return member_->rank(); }
  int processes() const { return member_->nranks(); }

  /// Collective: returns the bytes that each process has brought, at most 64 KiB each.
  Result<bootstrap::Gathered> exchange(std::span<const std::byte> mine);
  /// Ends an exchange under way with an error. The exchanges of the other processes end with an
  /// error, too, as this process leaves.
  void end();

 private:
  Bridge() = default;
  Abort abort_;
  std::unique_ptr<bootstrap::Member> member_;  // waits by abort_
};

}  // namespace niccolite::perf
