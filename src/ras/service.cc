#include "ras/service.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <list>
#include <memory>
#include <mutex>
#include <set>

#include <fmt/core.h>

#include "base/log.h"
#include "base/parameters.h"
#include "base/socket.h"
#include "base/thread.h"
#include "bootstrap/event_loop.h"
#include "ras/session.h"

namespace niccolite::ras {
namespace {

using bootstrap::EventLoop;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostClients = 64;
constexpr size_t kMostQueued = size_t{16} << 20;  // bytes that a client has not read
constexpr seconds kIdleLimit{60};                 // of a client that asks for nothing
constexpr milliseconds kMonitorInterval{200};
constexpr seconds kLongest{24 * 3600};  // where a client wants no time-out

std::string local_time() {
  const time_t now = time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string list(const std::set<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += fmt::format("{}{}", text.empty() ? "" : ",", number);
  return text;
}

struct Announcement {
  unsigned group = Session::kLifecycle;
  const char* event = "";
  const char* details = "";
};

/// A line of a monitor's text, or an object of its JSON.
std::string describe_event(const Announcement& of, const ProcessName& process,
                           const std::set<int>& devices, bool is_json) {
  const std::string when = local_time();
  if (!is_json)
    return fmt::format("[{}] {}: Process {} on node {} managing GPU{} {} {}\n", when, of.event,
                       process.pid, process.host, devices.size() == 1 ? "" : "s", list(devices),
                       of.details);
  return fmt::format(
      "{{\n  \"timestamp\": \"{}\",\n  \"group\": \"{}\",\n  \"event\": \"{}\",\n"
      "  \"peer\": {{\n    \"host\": \"{}\",\n    \"pid\": {},\n    \"cuda_devs\": [{}],\n"
      "    \"nvml_devs\": [{}]\n  }},\n  \"details\": \"{}\"\n}}\n",
      when, of.group == Session::kTrace ? "TRACE" : "LIFECYCLE", of.event, process.host,
      process.pid, list(devices), list(devices), of.details);
}

struct Client {
  Client(Socket connection, Session::Report report)
      : socket(std::move(connection)), session(std::move(report)) {}
  Socket socket;
  Session session;
  std::string queued;
  bool is_ending = false;  // once all is sent
  EventLoop::Id watch = 0, idle = 0;
};

// Everything but the constructor and the destructor runs on the loop's thread.
class Service {
 public:
  explicit Service(Versions versions) : versions_(std::move(versions)) {}
  ~Service() {
    if (loop_ != nullptr) loop_->stop();
    thread_.join();
  }

  Status start() {
    const std::string where =
        parameters::ras_address().empty() ? "localhost:28028" : parameters::ras_address();
    const Address address = TRY(Address::parse(where));
    listener_ = TRY(Socket::listen_shared(address));
    loop_ = TRY(EventLoop::create());
    TRY(loop_->watch(listener_.fd(), EPOLLIN, [this](uint32_t) { accept_waiting(); }));
    thread_ = TRY(Thread::start("nccl-ras", [this] {
      loop_->run();
      clients_.clear();
    }));
    LOG(Info, Ras, "RAS: listening at {}", address.text());
    return {};
  }

 private:
  void accept_waiting() {
    while (true) {
      int error = 0;
      Result<std::optional<Socket>> waiting = listener_.accept(&error);
      if (!waiting.is_ok() || !waiting.value().has_value()) return;
      if (clients_.size() < kMostClients || drop_silent()) add(std::move(*waiting.value()));
    }
  }

  /// Makes room for a new client: of the clients that monitor nothing and have read every answer,
  /// the one that came first goes. Connections that only stand open thus keep nobody out, nor do
  /// those that are closed already and whose end has not been read. False: all are in use.
  bool drop_silent() {
    const auto silent = std::ranges::find_if(clients_, [](const auto& client) {
      return client->session.monitors() == 0 && client->queued.empty();
    });
    if (silent == clients_.end()) return false;
    drop(std::shared_ptr(*silent));
    return true;
  }

  void add(Socket socket) {
    const auto report = [this](const Session::Request& request,
                               const std::function<void(std::string_view)>& out) {
      write_report(request, out);
    };
    auto client = std::make_shared<Client>(std::move(socket), report);
    Result<EventLoop::Id> watch = loop_->watch(
        client->socket.fd(), EPOLLIN, [this, weak = std::weak_ptr(client)](uint32_t events) {
          if (const auto ready = weak.lock()) serve(ready, events);
        });
    if (!watch.is_ok()) return;
    client->watch = watch.value();
    client->idle = loop_->after(kIdleLimit, [this, weak = std::weak_ptr(client)] {
      if (const auto idle = weak.lock()) drop(idle);
    });
    clients_.push_back(client);
  }

  void drop(const std::shared_ptr<Client>& client) {
    loop_->forget(client->watch);
    loop_->cancel(client->idle);
    clients_.remove(client);
  }

  void serve(const std::shared_ptr<Client>& client, uint32_t events) {
    if ((events & EPOLLOUT) != 0 && !flush(*client)) return drop(client);
    if ((events & ~uint32_t{EPOLLOUT}) == 0 || client->is_ending) return;
    std::array<std::byte, 1024> bytes;
    const Result<Transfer> received = client->socket.receive(bytes);
    if (!received.is_ok() || !received.value().open) return drop(client);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                                received.value().bytes);
    bool is_sound = true;
    const auto out = [&](std::string_view answer) { is_sound = is_sound && send(*client, answer); };
    if (!client->session.receive(text, out)) end(client);
    if (!is_sound) return drop(client);
    if (client->session.monitors() != 0) begin_to_monitor(client);
  }

  // What fits is sent now: the first part of a report is there before the rest is collected.
  bool send(Client& client, std::string_view text) {
    client.queued += text;
    return client.queued.size() <= kMostQueued && flush(client);
  }

  bool flush(Client& client) {
    while (!client.queued.empty()) {
      const Result<Transfer> sent = client.socket.send(std::as_bytes(std::span(client.queued)));
      if (!sent.is_ok()) return false;
      if (sent.value().bytes == 0) break;
      client.queued.erase(0, sent.value().bytes);
    }
    // Of a client that hears its last words nothing more is read: it may have closed its side.
    const uint32_t reads = client.is_ending ? 0u : uint32_t{EPOLLIN};
    loop_->change(client.watch, reads | (client.queued.empty() ? 0u : uint32_t{EPOLLOUT}));
    return !client.is_ending || !client.queued.empty();
  }

  void end(const std::shared_ptr<Client>& client) {
    client->is_ending = true;
    if (!flush(*client)) drop(client);
  }

  void begin_to_monitor(const std::shared_ptr<Client>& client) {
    loop_->cancel(client->idle);
    if (is_monitoring_) return;
    is_monitoring_ = true;
    seen_ = comm::StatusBoard::of_process().processes(wants_trace());
    loop_->after(kMonitorInterval, [this] { look_for_changes(); });
  }

  void look_for_changes() {
    constexpr unsigned kLifecycle = Session::kLifecycle, kTrace = Session::kTrace;
    const auto known = comm::StatusBoard::of_process().processes(wants_trace());
    for (const auto& entry : known) {
      const auto& name = entry.first;
      const comm::StatusBoard::Known& process = entry.second;
      const auto found = seen_.find(name);
      const bool is_new = found == seen_.end();
      const comm::StatusBoard::Known before = is_new ? comm::StatusBoard::Known{} : found->second;
      const auto say = [&](const Announcement& what) { announce(what, name, process.devices); };
      if (is_new) say({kLifecycle, "PEER_NEW"});
      if (is_new) say({kTrace, "PEER_CONNECTED", "connection established"});
      if (process.is_stopped && !before.is_stopped)
        say({kTrace, "PEER_UNRESPONSIVE", "not responding: the process is stopped"});
      if (before.is_stopped && !process.is_stopped && !process.is_lost)
        say({kTrace, "PEER_RECOVERED", "responding again after a delay"});
      if (!process.is_lost || before.is_lost) continue;
      say({kTrace, "PEER_DISCONNECTED", "closed by peer"});
      say({kLifecycle, "PEER_DEAD"});
    }
    seen_ = known;
    is_monitoring_ = std::ranges::any_of(
        clients_, [](const auto& client) { return client->session.monitors() != 0; });
    if (is_monitoring_) loop_->after(kMonitorInterval, [this] { look_for_changes(); });
  }

  bool wants_trace() const {
    return std::ranges::any_of(clients_, [](const auto& client) {
      return (client->session.monitors() & Session::kTrace) != 0;
    });
  }

  void announce(const Announcement& what, const ProcessName& name, const std::set<int>& devices) {
    const std::list<std::shared_ptr<Client>> clients = clients_;  // some may be dropped
    for (const auto& client : clients) {
      if ((client->session.monitors() & what.group) == 0) continue;
      if (!send(*client, describe_event(what, name, devices, client->session.wants_json())))
        drop(client);
    }
  }

  void write_report(const Session::Request& request,
                    const std::function<void(std::string_view)>& out) const {
    const bool is_text = !request.is_json && !request.wants_verdicts && !request.wants_stragglers;
    if (is_text) out(text_head(versions_, known_job()));
    const seconds patience = request.timeout.count() == 0 ? kLongest : request.timeout;
    const Job job = collect(Deadline::after(patience * parameters::ras_timeout_factor()));
    if (request.wants_verdicts) return out(verdicts_of(job));
    if (request.wants_stragglers) return out(stragglers_of(job));
    out(is_text ? text_rest(job, request.is_verbose) : to_json(versions_, job, local_time()));
  }

  const Versions versions_;
  Socket listener_;
  std::unique_ptr<EventLoop> loop_;
  std::list<std::shared_ptr<Client>> clients_;
  bool is_monitoring_ = false;
  std::map<ProcessName, comm::StatusBoard::Known> seen_;  // by monitors so far
  Thread thread_;                                         // last: joined first
};

// The one of this process. Ends at exit; a child made by fork() has none of it.
class Owner {
 public:
  void start(const Versions& versions) {
    std::lock_guard lock(mutex_);
    if (process_ == getpid()) return;
    if (process_ != 0) (void)service_.release();  // a parent's: neither thread nor sockets are ours
    process_ = getpid();
    auto service = std::make_unique<Service>(versions);
    if (const Status status = service->start(); !status.is_ok()) {
      LOG(Info, Ras, "RAS: this process does not answer ncclras: {}", status.message());
      return;
    }
    service_ = std::move(service);
  }
  ~Owner() {
    if (process_ != getpid()) (void)service_.release();
  }

 private:
  std::mutex mutex_;
  pid_t process_ = 0;
  std::unique_ptr<Service> service_;
};

}  // namespace

void start_service(const Versions& versions) {
  if (parameters::ras_enable() == 0) return;
  static Owner owner;
  owner.start(versions);
}

}  // namespace niccolite::ras
