#include "operations/graph_uses.h"

#include <utility>

#include "base/forks.h"
#include "base/log.h"
#include "base/thread.h"

namespace niccolite::operations {

Status GraphUses::add(gpu::Graphs& machine, int device, gpu::StreamHandle stream) {
  auto kept = std::make_unique<std::shared_ptr<GraphUses>>(shared_from_this());
  {
    std::lock_guard lock(mutex_);
    ++count_;
  }
  Status status = machine.keep_in_graph(device, stream, kept.get(), [](void* of_graph) {
    const std::unique_ptr<std::shared_ptr<GraphUses>> uses(
        static_cast<std::shared_ptr<GraphUses>*>(of_graph));
    (*uses)->remove();
  });
  if (status.is_ok())
    static_cast<void>(kept.release());  // the graph owns it now
  else
    remove();
  return status;
}

bool GraphUses::call_after_last(std::function<void()> release) {
  std::lock_guard lock(mutex_);
  if (count_ == 0) return false;
  release_ = std::move(release);
  return true;
}

void GraphUses::remove() {
  if (forks::is_orphan()) return;  // the graphs are the parent's
  std::function<void()> release;
  {
    std::lock_guard lock(mutex_);
    if (--count_ > 0 || release_ == nullptr) return;
    release = std::exchange(release_, nullptr);
  }
  auto kept = std::make_unique<std::function<void()>>(std::move(release));
  Result<Thread> thread = Thread::start("nccl-release", [body = kept.get()] {
    const std::unique_ptr<std::function<void()>> owned(body);
    (*owned)();
  });
  static_cast<void>(kept.release());  // the thread's; without one, better lost than waited for
  if (thread.is_ok())
    thread.value().detach();
  else
    LOG(Warn, All, "{}", thread.status().message());
}

}  // namespace niccolite::operations
