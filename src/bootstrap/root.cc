#include "bootstrap/root.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "bootstrap/rendezvous.h"
#include "wire/acceptor.h"

namespace niccolite::bootstrap {
namespace {

// Some programs make ids hours before they need them.
constexpr auto kIdleLimit = std::chrono::hours(24);
// How long ranks that are not let in may read the reason while the process exits.
constexpr auto kReading = std::chrono::seconds(2);
constexpr auto kReadingLook = std::chrono::milliseconds(10);
// Frames to the root are small; nothing else is let in.
constexpr size_t kMaxRootFrame = 16u << 10;
constexpr size_t kMostMeetings = 16u << 10;

// One root: a rendezvous, and the door of its own that one of NCCL_COMM_ID has.
struct Meeting {
  UniqueId id;
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<wire::Acceptor> door;
  wire::EventLoop::Id idle_timer = 0;
};

// The roots of a process while there are any: a loop, its thread, and doors by interface.
// Everything but the constructor, open() and adopt() runs on the loop's thread.
class House {
 public:
  /// `over` is called on the loop's thread when a root has ended.
  explicit House(std::function<void()> over)
      : over_(std::move(over)), self_(messages::Origin::of_this_process()) {}
  ~House() {
    if (loop_ != nullptr) loop_->stop();
    thread_.join();
  }

  Status start() {
    loop_ = TRY(wire::EventLoop::create());
    thread_ = TRY(Thread::start("nccl-root", [this] {
      loop_->run();
      meetings_.clear();
      doors_.clear();
    }));
    return {};
  }

  /// Makes an id whose root is at `interface`. By one thread at a time.
  Result<UniqueId> open(const Address& interface) {
    const auto known = addresses_.find(interface.with_port(0).text());
    if (known != addresses_.end()) return add(known->second, std::nullopt);
    Socket listener = TRY(Socket::listen(interface.with_port(0)));
    const Address address = TRY(listener.local_address());
    addresses_.emplace(interface.with_port(0).text(), address);
    return add(address, std::move(listener));
  }

  /// The root of an id of NCCL_COMM_ID.
  void adopt(const UniqueId& id, Socket listener) {
    auto socket = std::make_shared<Socket>(std::move(listener));
    loop_->post([this, id, socket] { begin(id, std::move(*socket)); });
  }

  /// Ends the id's root. By one thread at a time.
  void dismiss(const UniqueId& id) {
    loop_->post([this, id] {
      const auto meeting = meetings_.find(id.number());
      if (meeting != meetings_.end() && meeting->second.id == id &&
          meeting->second.rendezvous->is_unused())
        end(meeting);
    });
  }

  void stop() { loop_->stop(); }

  /// Waits until ranks that are not let in have read why, for a moment: the process exits, perhaps
  /// because its own ranks have.
  void linger() {
    const auto is_over = std::make_shared<std::promise<void>>();
    loop_->post([this, is_over] { look_for_readers(is_over); });
    is_over->get_future().wait_for(kReading);
  }

 private:
  void look_for_readers(const std::shared_ptr<std::promise<void>>& is_over) {
    const bool owes = std::ranges::any_of(
        meetings_, [](const auto& entry) { return entry.second.rendezvous->owes_word(); });
    if (!owes) return is_over->set_value();
    loop_->after(kReadingLook, [this, is_over] { look_for_readers(is_over); });
  }

  // The task is posted before the id is returned, so it runs before anybody can ask for the id.
  Result<UniqueId> add(const Address& address, std::optional<Socket> listener) {
    const UniqueId id = UniqueId::random(address);
    auto socket = std::make_shared<std::optional<Socket>>(std::move(listener));
    auto reserve = std::make_shared<Fd>();
    if (socket->has_value()) *reserve = Fd(fcntl((*socket)->fd(), F_DUPFD_CLOEXEC, 0));
    loop_->post([this, id, socket, reserve] {
      if (socket->has_value()) open_door(std::move(**socket), std::move(*reserve));
      begin(id, std::nullopt);
    });
    return id;
  }

  // Listens for all ids of ncclGetUniqueId at one address.
  void open_door(Socket listener, Fd reserve) {
    wire::Link::Options options{.self = {}, .identity_of = {}, .max_frame = kMaxRootFrame};
    options.identity_of = [this](uint64_t number) {
      authentication::Identity identity{.key = {}, .number = number};
      if (const auto meeting = meetings_.find(number); meeting != meetings_.end()) {
        identity.key = meeting->second.id.key("root");
      } else {
        // A peer that asks for an unknown id gets a proof with a random key, and so learns at once
        // that the id is not here.
        authentication::fill_random(identity.key);
      }
      return identity;
    };
    auto door = wire::Acceptor::create(
        *loop_, std::move(listener), options,
        [this](std::unique_ptr<wire::Link> link) { let_in(std::move(link)); },
        [this](const Status& why) {
          for (auto& [number, meeting] : meetings_) meeting.rendezvous->exhausted(why);
        });
    if (!door.is_ok()) return log::error(door.status(), "ncclGetUniqueId");
    door.value()->keep(std::move(reserve));
    doors_.push_back(std::move(door).take());
  }

  void let_in(std::unique_ptr<wire::Link> link) {
    const auto meeting = meetings_.find(link->number());
    // It may have ended during the handshake.
    if (meeting == meetings_.end()) return wire::Link::bury(*loop_, std::move(link));
    meeting->second.rendezvous->welcome(std::move(link));
  }

  void begin(const UniqueId& id, std::optional<Socket> listener) {
    // NCCL_COMM_ID gives one id again and again: each of its roots has a door, and needs no number
    // that others know.
    const uint64_t number = listener ? (own_number_ += 2) : id.number();
    Meeting meeting{.id = id, .rendezvous = nullptr, .door = nullptr};
    meeting.rendezvous = std::make_unique<Rendezvous>(
        *loop_, Rendezvous::Options{.address = id.root(),
                                    .waits_for_late = id.origin() == UniqueId::Origin::Root,
                                    .host = self_,
                                    .decided = [this, number] { decided(number); },
                                    .over = [this, number] { end_later(number); }});
    Rendezvous* const rendezvous = meeting.rendezvous.get();
    if (listener) {
      const wire::Link::Options options{.self = {.key = id.key("root"), .number = 0},
                                        .identity_of = {},
                                        .max_frame = kMaxRootFrame};
      auto door = wire::Acceptor::create(
          *loop_, std::move(*listener), options,
          [rendezvous](std::unique_ptr<wire::Link> link) { rendezvous->welcome(std::move(link)); },
          [rendezvous](const Status& why) { rendezvous->exhausted(why); });
      if (!door.is_ok()) {
        log::error(door.status(), "NCCL_COMM_ID");
        return over_();
      }
      meeting.door = std::move(door).take();
    }
    meeting.idle_timer = loop_->after(kIdleLimit, [this, number] { end_later(number); });
    meetings_.emplace(number, std::move(meeting));
    forget_some();
  }

  void decided(uint64_t number) {
    Meeting& meeting = meetings_.at(number);
    loop_->cancel(meeting.idle_timer);
    // The next communicator of NCCL_COMM_ID meets at this address: closes the door to make room, so
    // that nobody waits at the wrong one. Not at once, because this runs inside a callback of a
    // link that the door may hold.
    if (meeting.door != nullptr)
      loop_->post([door = std::shared_ptr<wire::Acceptor>(std::move(meeting.door))] {});
  }

  // Ends it later, because a rendezvous ends inside its own callbacks.
  void end_later(uint64_t number) {
    loop_->post([this, number] {
      if (const auto meeting = meetings_.find(number); meeting != meetings_.end()) end(meeting);
    });
  }

  void end(std::map<uint64_t, Meeting>::iterator meeting) {
    loop_->cancel(meeting->second.idle_timer);
    meetings_.erase(meeting);
    over_();
  }

  // A program that makes ids for ever and uses none must not grow for ever.
  void forget_some() {
    if (meetings_.size() <= kMostMeetings) return;
    for (auto it = meetings_.begin(); it != meetings_.end(); ++it)
      if (it->second.rendezvous->is_unused() && it->first != meetings_.rbegin()->first)
        return end(it);
  }

  const std::function<void()> over_;
  const messages::Origin self_;
  std::map<std::string, Address> addresses_;  // by interface: where it is listened; open() only
  std::unique_ptr<wire::EventLoop> loop_;
  std::vector<std::unique_ptr<wire::Acceptor>> doors_;
  std::map<uint64_t, Meeting> meetings_;  // by UniqueId::number(), which is odd, or own_number_
  uint64_t own_number_ = 0;
  Thread thread_;  // last: joined first
};

// The house of this process. Never destroyed, because threads of the library may outlive static
// objects; emptied at exit.
class Roots {
 public:
  static Roots& of_process() {
    static Roots* const roots = new Roots;
    static const AtExit at_exit;
    return *roots;
  }

  Result<UniqueId> open(const Address& interface) {
    return with_house([&](House& house) { return house.open(interface); });
  }
  Status adopt(const UniqueId& id, Socket listener) {
    return with_house([&](House& house) -> Result<UniqueId> {
             house.adopt(id, std::move(listener));
             return id;
           })
        .status()
        .copy();
  }
  void dismiss(const UniqueId& id) {
    std::lock_guard lock(mutex_);
    forget_parents();
    if (house_ != nullptr && meetings_ > 0) house_->dismiss(id);
  }
  int count() {
    std::lock_guard lock(mutex_);
    forget_parents();
    return meetings_;
  }

 private:
  struct AtExit {
    ~AtExit() { of_process().clear(); }
  };

  // `open` begins a root in the house, which is built if there is none.
  template <typename Open>
  Result<UniqueId> with_house(Open&& open) {
    std::unique_ptr<House> empty;  // joined after the lock is released
    std::lock_guard lock(mutex_);
    forget_parents();
    if (meetings_ == 0) {
      empty = std::move(house_);
      auto house = std::make_unique<House>([this] { meeting_ended(); });
      TRY(house->start());
      house_ = std::move(house);
    }
    Result<UniqueId> id = open(*house_);
    if (id.is_ok()) ++meetings_;
    return id;
  }

  // On the loop's thread, which therefore cannot be joined here: the next root does it, or the
  // exit.
  void meeting_ended() {
    std::lock_guard lock(mutex_);
    if (house_ != nullptr && --meetings_ == 0) house_->stop();
  }

  void clear() {
    // The root's thread holds the mutex when its last root ends, which may be now: wait for it.
    std::unique_lock lock = lock_at_exit(mutex_, process_);
    if (!lock.owns_lock()) return;
    forget_parents();
    const bool serves = std::exchange(meetings_, 0) > 0;
    const std::unique_ptr<House> house = std::move(house_);
    lock.unlock();  // before it is joined
    if (house != nullptr && serves) house->linger();
  }

  // A child made by fork() must not stop the parent's roots: it has neither their thread nor their
  // sockets.
  void forget_parents() {
    if (process_ == getpid()) return;
    (void)house_.release();
    meetings_ = 0;
    process_ = getpid();
  }

  std::mutex mutex_;
  std::atomic<pid_t> process_ = getpid();  // whose roots these are; read without the mutex at exit
  int meetings_ = 0;
  std::unique_ptr<House> house_;
};

}  // namespace

Result<UniqueId> Root::start(const Address& interface) {
  TRY(authentication::initialize());
  return Roots::of_process().open(interface);
}

Status Root::start_for(const UniqueId& id, Deadline deadline, const Abort* abort) {
  TRY(authentication::initialize());
  // An earlier rendezvous at this address ends within moments; a listener that stays longer is
  // another program's.
  constexpr auto kPause = std::chrono::milliseconds(20);
  const Deadline patience = Deadline::after(std::chrono::seconds(15));
  while (true) {
    int error = 0;
    Result<Socket> listener = Socket::listen(id.root(), &error);
    if (listener.is_ok()) return Roots::of_process().adopt(id, std::move(listener.value()));
    if (error != EADDRINUSE || deadline.passed() || patience.passed())
      return std::move(listener).status().with_context(
          "NCCL_COMM_ID must be an address of the host of rank 0 with a free port");
    if (abort != nullptr && abort->raised()) return abort->reason();
    std::this_thread::sleep_for(kPause);
  }
}

void Root::dismiss(const UniqueId& id) {
  if (id.origin() == UniqueId::Origin::Root) Roots::of_process().dismiss(id);
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
