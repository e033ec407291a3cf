#include "bootstrap/root.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/rendezvous.h"

namespace niccolite::bootstrap {
namespace {

// An id that nobody uses keeps a thread and a socket; some programs make ids hours before they need
// them.
constexpr auto kIdleLimit = std::chrono::hours(24);
// Frames to the root are small; nothing else is let in.
constexpr size_t kMaxRootFrame = 16u << 10;

class Server {
 public:
  Server(EventLoop& loop, const UniqueId& id, const Address& address)
      : loop_(loop),
        id_(id),
        rendezvous_(loop, {.address = address,
                           .waits_for_late = id.origin() == UniqueId::Origin::Root,
                           .decided = [this] { decided(); },
                           .over = [this] { loop_.stop(); }}) {}

  Status listen(Socket listener) {
    const Link::Options options{.self = {.key = id_.key("root"), .number = 0},
                                .max_frame = kMaxRootFrame};
    acceptor_ = TRY(Acceptor::create(
        loop_, std::move(listener), options,
        [this](std::unique_ptr<Link> link) { rendezvous_.welcome(std::move(link)); }));
    idle_timer_ = loop_.after(kIdleLimit, [this] { loop_.stop(); });
    return {};
  }

 private:
  void decided() {
    loop_.cancel(idle_timer_);
    // The next communicator of NCCL_COMM_ID meets at the same address: make room, and let nobody
    // wait at the wrong door. Later, since this runs inside a callback of a link that the acceptor
    // may hold.
    if (id_.origin() == UniqueId::Origin::Environment) loop_.post([this] { acceptor_.reset(); });
  }

  EventLoop& loop_;
  const UniqueId id_;
  Rendezvous rendezvous_;
  std::unique_ptr<Acceptor> acceptor_;
  EventLoop::Id idle_timer_ = 0;
};

// One root: its thread, and its loop while it runs.
class Running {
 public:
  Status start(Socket listener, const UniqueId& id, const Address& address) {
    loop_ = TRY(EventLoop::create());
    auto server = std::make_shared<Server>(*loop_, id, address);
    TRY(server->listen(std::move(listener)));
    thread_ = TRY(Thread::start("nccl-root", [this, server = std::move(server)]() mutable {
      loop_->run();
      server.reset();
      std::lock_guard lock(mutex_);
      loop_.reset();
    }));
    return {};
  }
  ~Running() {
    std::unique_lock lock(mutex_);
    if (loop_ != nullptr) loop_->stop();
    lock.unlock();
    thread_.join();
  }
  bool serves() {
    std::lock_guard lock(mutex_);
    return loop_ != nullptr;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<EventLoop> loop_;  // created by start(), taken down by the thread under mutex_
  Thread thread_;                    // last: joined first
};

// The roots of this process. Never destroyed, because threads of the library may outlive static
// objects; emptied at exit.
class Roots {
 public:
  static Roots& of_process() {
    static Roots* const roots = new Roots;
    static const AtExit at_exit;
    return *roots;
  }

  Status add(Socket listener, const UniqueId& id, const Address& address) {
    auto running = std::make_unique<Running>();
    TRY(running->start(std::move(listener), id, address));
    std::list<std::unique_ptr<Running>> over;  // joined after the lock is released
    std::lock_guard lock(mutex_);
    forget_parents();
    for (auto it = running_.begin(); it != running_.end();) {
      const auto next = std::next(it);
      if (!(*it)->serves()) over.splice(over.end(), running_, it);
      it = next;
    }
    running_.push_back(std::move(running));
    return {};
  }

  int count() {
    std::lock_guard lock(mutex_);
    forget_parents();
    return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                          [](const auto& running) { return running->serves(); }));
  }

 private:
  struct AtExit {
    ~AtExit() { of_process().clear(); }
  };

  void clear() {
    std::list<std::unique_ptr<Running>> all;  // joined after the lock is released
    // Held for ever in a child made by fork() while another thread of the parent held it.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    forget_parents();
    all.swap(running_);
  }

  // In a child made by fork() the parent's roots are not ours to stop: neither their threads nor
  // their sockets are here.
  void forget_parents() {
    if (process_ == getpid()) return;
    for (auto& running : running_) (void)running.release();
    running_.clear();
    process_ = getpid();
  }

  std::mutex mutex_;
  pid_t process_ = getpid();
  std::list<std::unique_ptr<Running>> running_;
};

}  // namespace

Result<UniqueId> Root::start(const Address& interface) {
  TRY(authentication::initialize());
  Socket listener = TRY(Socket::listen(interface.with_port(0)));
  const Address address = TRY(listener.local_address());
  const UniqueId id = UniqueId::random(address);
  TRY(Roots::of_process().add(std::move(listener), id, address));
  return id;
}

Status Root::start_for(const UniqueId& id, Deadline deadline, const Abort* abort) {
  TRY(authentication::initialize());
  // An earlier rendezvous at this address ends within moments; what stays longer is another
  // program.
  constexpr auto kPause = std::chrono::milliseconds(20);
  const Deadline patience = Deadline::after(std::chrono::seconds(15));
  while (true) {
    int error = 0;
    Result<Socket> listener = Socket::listen(id.root(), &error);
    if (listener.is_ok())
      return Roots::of_process().add(std::move(listener.value()), id, id.root());
    if (error != EADDRINUSE || deadline.passed() || patience.passed())
      return std::move(listener).status().with_context(
          "NCCL_COMM_ID must be an address of the host of rank 0 with a free port");
    if (abort != nullptr && abort->raised()) return abort->reason();
    std::this_thread::sleep_for(kPause);
  }
}

int Root::count_running() { return Roots::of_process().count(); }

std::vector<uint32_t> neighbors_of(uint32_t self, uint32_t nprocesses) {
  std::set<uint32_t> neighbors;
  for (uint32_t distance = 1; distance < nprocesses; distance *= 2) {
    neighbors.insert((self + distance) % nprocesses);
    neighbors.insert((self + nprocesses - distance) % nprocesses);
  }
  neighbors.erase(self);
  return {neighbors.begin(), neighbors.end()};
}

}  // namespace niccolite::bootstrap
