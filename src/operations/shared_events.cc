#include "operations/shared_events.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"

namespace niccolite::operations {
namespace {

class SharedEvents {
 public:
  static SharedEvents& instance() {
    static auto* const events = new SharedEvents;  // never destroyed: graphs outlive main()
    return *events;
  }

  Result<std::shared_ptr<gpu::Event>> take(gpu::Streams& machine, int device) {
    const Key key{&machine, device};
    std::unique_ptr<gpu::Event> event = take_unused(key);
    if (event == nullptr) {
      gpu::Event made = TRY(machine.create_event(device, /*timing=*/false));
      event = std::make_unique<gpu::Event>(std::move(made));
    }
    return std::shared_ptr<gpu::Event>(event.release(), [this, key](gpu::Event* unused) {
      std::lock_guard lock(mutex_);
      unused_[key].emplace_back(unused);
    });
  }

 private:
  using Key = std::pair<gpu::Streams*, int>;

  std::unique_ptr<gpu::Event> take_unused(const Key& key) {
    std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<gpu::Event>>& events = unused_[key];
    if (events.empty()) return nullptr;
    std::unique_ptr<gpu::Event> event = std::move(events.back());
    events.pop_back();
    return event;
  }

  std::mutex mutex_;
  std::map<Key, std::vector<std::unique_ptr<gpu::Event>>> unused_ GUARDED_BY(mutex_);
};

void let_go(void* kept) { delete static_cast<std::shared_ptr<gpu::Event>*>(kept); }

}  // namespace

Result<std::shared_ptr<gpu::Event>> take_shared_event(gpu::Streams& machine, int device) {
  return SharedEvents::instance().take(machine, device);
}

Status keep_in_graph(gpu::Graphs& machine, int device, gpu::StreamHandle stream,
                     const std::shared_ptr<gpu::Event>& event) {
  auto kept = std::make_unique<std::shared_ptr<gpu::Event>>(event);
  TRY(machine.keep_in_graph(device, stream, kept.get(), let_go));
  static_cast<void>(kept.release());  // let_go() owns it now
  return {};
}

}  // namespace niccolite::operations
