#include "ras/service.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <list>
#include <memory>
#include <mutex>
#include <set>

#include <fmt/core.h>

#include "base/listeners.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/thread.h"
#include "ras/session.h"
#include "wire/event_loop.h"

namespace niccolite::ras {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::EventLoop;

constexpr size_t kMostClients = 64;
constexpr size_t kMostReports = 8;  // that are collected at once; the others wait for their turn
constexpr size_t kMostSent = size_t{1} << 20;  // bytes that are kept though they have been sent
constexpr seconds kIdleLimit{60};              // of a client that asks for nothing
constexpr milliseconds kMonitorInterval{200};
constexpr milliseconds kJobInterval{500};
constexpr milliseconds kRest{100};      // of the listener, where no descriptors are left
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

struct Client;

/// One that is being collected, on a thread of its own.
struct Report {
  std::weak_ptr<Client> client;  // gone: nobody wants it any more
  Abort cancel;                  // ends the collection with the answers that have come
  Thread thread;                 // last: joined first
};

enum class Phase : uint8_t {
  Talking,
  Reporting,  // the client's report waits for its turn, or is being collected
  Ending      // the connection, once all is sent
};

struct Client : std::enable_shared_from_this<Client> {
  explicit Client(Socket connection) : socket(std::move(connection)) {}
  Socket socket;
  Session session;
  std::string queued;
  size_t sent = 0;  // bytes of it
  Phase phase = Phase::Talking;
  bool is_half_closed = false;  // seen while Reporting
  Report* report = nullptr;     // that is being collected
  EventLoop::Id watch = 0;
  EventLoop::Id timer = 0;  // ends the patience with its silence, or with its report
};

// Everything but the constructor and the destructor runs on the loop's thread.
class Server final : public Service {
 public:
  explicit Server(ServiceOptions options) : options_(std::move(options)) {}
  ~Server() override {
    if (loop_ != nullptr) loop_->stop();
    thread_.join();
  }

  Status start() {
    const Address address = TRY(Address::parse(options_.address));
    int error = 0;
    Result<Socket> listener = Socket::listen_shared(address, &error);
    if (error == EADDRINUSE)
      return Status::system_error(
          "{} listens at {}, so that no client (ncclras, niccolite ras) gets to this one. Give "
          "each "
          "job an address of its own (NCCL_RAS_ADDR=localhost:PORT), or no RAS (NCCL_RAS_ENABLE=0)",
          listeners_at(address).text(), address.text());
    listener_ = TRY(std::move(listener));
    loop_ = TRY(EventLoop::create());
    listening_ = TRY(loop_->watch(listener_.fd(), EPOLLIN, [this](uint32_t) { accept_waiting(); }));
    thread_ = TRY(Thread::start("nccl-ras", [this] {
      loop_->run();
      for (const auto& report : reports_) report->cancel.raise(ending());
      reports_.clear();  // joins
      clients_.clear();
    }));
    LOG(Info, Ras, "RAS: listening at {}", address.text());
    if (options_.tells_of_other_jobs)
      loop_->post([this, address] { look_for_other_jobs(address); });
    return {};
  }

 private:
  // Looks for other jobs once the processes of this job are known. The job that came first stays
  // silent.
  void look_for_other_jobs(const Address& address) {
    const auto job = diagnosis::StatusBoard::of_process().processes();
    if (job.empty()) {
      loop_->after(kJobInterval, [this, address] { look_for_other_jobs(address); });
      return;
    }
    const uint64_t started = this_process().started;
    Listeners others = listeners_at(address);
    std::erase_if(others.processes, [&](const ListeningProcess& process) {
      return process.started > started || std::ranges::any_of(job, [&](const auto& known) {
               return known.first.pid == static_cast<uint64_t>(process.number);
             });
    });
    if (others.processes.empty()) return;
    const std::string text = fmt::format(
        "RAS: {} listens at {}, too, and shares no communicator with this process: a client "
        "(ncclras, niccolite ras) gets to the one job or the other. Give each job an address of "
        "its "
        "own (NCCL_RAS_ADDR=localhost:PORT)",
        others.text(), address.text());
    if (parameters::ras_address().empty())
      LOG(Info, Ras, "{}", text);  // nobody may want RAS
    else
      LOG(Warn, Ras, "{}", text);
  }

  // Accepts one client. accept() fails without a free descriptor also if no client waits.
  void accept_waiting() {
    int error = 0;
    Result<std::optional<Socket>> waiting = listener_.accept(&error);
    if (!waiting.is_ok()) {
      if (!is_short_)
        LOG(Info, Ras, "RAS: a client waits for a descriptor: {}", waiting.status().message());
      is_short_ = true;
      if (drop_silent()) return;  // for the client; else the process must close some
      loop_->change(listening_, 0);
      loop_->after(kRest, [this] { loop_->change(listening_, EPOLLIN); });
      return;
    }
    is_short_ = false;
    if (!waiting.value().has_value()) return;
    if (clients_.size() < kMostClients || drop_silent()) add(std::move(*waiting.value()));
  }

  /// Makes room for a new client: drops the oldest client that monitors nothing and has read every
  /// answer. So neither idle connections nor closed ones whose end has not been read keep a new
  /// client out. False: all are in use.
  bool drop_silent() {
    const auto silent = std::ranges::find_if(clients_, [](const auto& client) {
      return client->phase == Phase::Talking && client->session.monitors() == 0 &&
             client->queued.empty();
    });
    if (silent == clients_.end()) return false;
    drop(std::shared_ptr(*silent));
    return true;
  }

  void add(Socket socket) {
    auto client = std::make_shared<Client>(std::move(socket));
    Result<EventLoop::Id> watch = loop_->watch(
        client->socket.fd(), EPOLLIN, [this, weak = std::weak_ptr(client)](uint32_t events) {
          if (const auto ready = weak.lock()) serve(ready, events);
        });
    if (!watch.is_ok()) return;
    client->watch = watch.value();
    drop_if_idle(*client);
    clients_.push_back(client);
  }

  void set_timer(Client& client, EventLoop::Clock::duration time,
                 const std::function<void(Client&)>& task) {
    loop_->cancel(client.timer);
    client.timer = loop_->after(time, [weak = client.weak_from_this(), task] {
      if (const auto found = weak.lock()) task(*found);
    });
  }

  void drop_if_idle(Client& client) {
    set_timer(client, kIdleLimit, [this](Client& idle) { drop(idle.shared_from_this()); });
  }

  void drop(const std::shared_ptr<Client>& client) {
    loop_->forget(client->watch);
    loop_->cancel(client->timer);
    if (client->report != nullptr) client->report->cancel.raise(ending());
    clients_.remove(client);
  }

  void serve(const std::shared_ptr<Client>& client, uint32_t events) {
    if ((events & EPOLLOUT) != 0 && !flush(*client)) return drop(client);
    if ((events & ~uint32_t{EPOLLOUT}) == 0 || client->phase == Phase::Ending) return;
    if (client->phase == Phase::Reporting) {
      if ((events & (EPOLLHUP | EPOLLERR)) != 0) return drop(client);
      return note_half_closed(*client);
    }
    std::array<std::byte, 1024> bytes;
    const Result<Transfer> received = client->socket.receive(bytes);
    if (!received.is_ok() || !received.value().open) return drop(client);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                                received.value().bytes);
    bool is_sound = true;
    const auto out = [&](std::string_view answer) { is_sound = is_sound && send(*client, answer); };
    const Session::Next next = client->session.receive(text, out);
    if (!is_sound) return drop(client);
    if (next == Session::Next::Report) return begin_report(client);
    if (next == Session::Next::End) return end(client);
    if (client->session.monitors() != 0) begin_to_monitor(client);
  }

  /// Some programs (ncat) close their side when they have asked, and wait for the answer. Others
  /// close it because they have ended. The two look alike until something is sent.
  void note_half_closed(Client& client) {
    client.is_half_closed = true;
    watch_for_more(client);
    if (client.report != nullptr) hurry_later(client);
  }
  void hurry_later(Client& client) {
    set_timer(client, default_patience(), [](Client& slow) { slow.report->cancel.raise(hurry()); });
  }

  // Sends as much as fits now, so that the client gets the first part of a report before the rest
  // is collected. A report is one answer, and may be larger than the usual limit of unread bytes.
  bool send(Client& client, std::string_view text) {
    client.queued += text;
    return client.queued.size() - client.sent <= options_.most_unread && flush(client);
  }

  bool flush(Client& client) {
    const size_t before = client.sent;
    while (client.sent < client.queued.size()) {
      const Result<Transfer> sent =
          client.socket.send(std::as_bytes(std::span(client.queued).subspan(client.sent)));
      if (!sent.is_ok()) return false;
      if (sent.value().bytes == 0) break;
      client.sent += sent.value().bytes;
    }
    // A client that goes on reading keeps its place, however long the report is.
    if (client.sent > before && client.phase == Phase::Ending) drop_if_idle(client);
    if (client.sent == client.queued.size() ||
        (client.sent > kMostSent && client.sent > client.queued.size() / 2)) {
      client.queued.erase(0, client.sent);
      client.sent = 0;
    }
    watch_for_more(client);
    return client.phase != Phase::Ending || !client.queued.empty();
  }

  void watch_for_more(const Client& client) {
    uint32_t events = client.queued.empty() ? 0u : uint32_t{EPOLLOUT};
    // Reads nothing more from a client that gets its last answer: it may have closed its side.
    if (client.phase == Phase::Talking) events |= EPOLLIN;
    if (client.phase == Phase::Reporting && !client.is_half_closed) events |= EPOLLRDHUP;
    loop_->change(client.watch, events);
  }

  void end(const std::shared_ptr<Client>& client) {
    client->phase = Phase::Ending;
    drop_if_idle(*client);
    if (!flush(*client)) drop(client);
  }

  void begin_report(const std::shared_ptr<Client>& client) {
    client->phase = Phase::Reporting;
    if (is_text(client->session.request()))
      client->queued += text_head(options_.versions, known_job());
    if (!flush(*client)) return drop(client);
    waiting_.push_back(client);
    // Reports of earlier clients may take their time, but this client does not wait for them for
    // ever.
    set_timer(*client, default_patience(), [this](Client&) {
      if (!reports_.empty()) reports_.front()->cancel.raise(hurry());
    });
    collect_some();
  }

  void collect_some() {
    while (reports_.size() < kMostReports && !waiting_.empty()) {
      const std::shared_ptr<Client> client = waiting_.front().lock();
      waiting_.pop_front();
      if (client != nullptr) start_to_collect(client);
    }
  }

  void start_to_collect(const std::shared_ptr<Client>& client) {
    loop_->cancel(client->timer);
    const auto place = reports_.insert(reports_.end(), std::make_unique<Report>());
    Report* const report = place->get();
    report->client = client;
    Result<Thread> thread =
        Thread::start("nccl-ras-report", [this, report, request = client->session.request()] {
          auto text = std::make_shared<std::string>();
          const Status written = guarded([&]() -> Status {
            *text = write_report(request, report->cancel);
            return {};
          });
          if (!written.is_ok()) *text = fmt::format("ERROR: {}\n", written.message());
          loop_->post([this, report, text] { finish(*report, *text); });
        });
    if (!thread.is_ok()) {
      reports_.erase(place);
      client->queued += fmt::format("ERROR: {}\n", thread.status().message());
      return end(client);
    }
    report->thread = std::move(thread).take();
    client->report = report;
    if (client->is_half_closed) hurry_later(*client);
  }

  void finish(Report& report, std::string_view text) {
    const std::shared_ptr<Client> client = report.client.lock();
    std::erase_if(reports_, [&](const auto& each) { return each.get() == &report; });  // joins
    if (client != nullptr) {
      client->report = nullptr;
      client->queued += text;
      end(client);
    }
    collect_some();
  }

  void begin_to_monitor(const std::shared_ptr<Client>& client) {
    loop_->cancel(client->timer);
    if (is_monitoring_) return;
    is_monitoring_ = true;
    seen_ = diagnosis::StatusBoard::of_process().processes(wants_trace());
    loop_->after(kMonitorInterval, [this] { look_for_changes(); });
  }

  void look_for_changes() {
    constexpr unsigned kLifecycle = Session::kLifecycle, kTrace = Session::kTrace;
    const auto known = diagnosis::StatusBoard::of_process().processes(wants_trace());
    for (const auto& entry : known) {
      const auto& name = entry.first;
      const diagnosis::StatusBoard::Known& process = entry.second;
      const auto found = seen_.find(name);
      const bool is_new = found == seen_.end();
      const diagnosis::StatusBoard::Known before =
          is_new ? diagnosis::StatusBoard::Known{} : found->second;
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
      if (client->phase != Phase::Talking || (client->session.monitors() & what.group) == 0)
        continue;
      if (!send(*client, describe_event(what, name, devices, client->session.wants_json())))
        drop(client);
    }
  }

  static bool is_text(const Session::Request& request) {
    return !request.is_json && !request.wants_verdicts && !request.wants_stragglers;
  }

  /// Writes a report without the head of a text. On any thread.
  std::string write_report(const Session::Request& request, Abort& cancel) const {
    // The factor is for the default alone, as NCCL's.
    seconds patience = request.timeout.value_or(default_patience());
    if (patience.count() == 0 || patience > kLongest) patience = kLongest;
    const Job job = options_.collect(Deadline::after(patience), cancel);
    if (request.wants_verdicts) return verdicts_of(job);
    if (request.wants_stragglers) return stragglers_of(job);
    return is_text(request) ? text_rest(job, request.is_verbose)
                            : to_json(options_.versions, job, local_time());
  }

  static seconds default_patience() {
    return Session::kDefaultTimeout * parameters::ras_timeout_factor();
  }
  static Status ending() { return Status::remote_error("nobody waits for this report any more"); }
  static Status hurry() { return Status::remote_error("this report has taken its time"); }

  const ServiceOptions options_;
  Socket listener_;
  EventLoop::Id listening_ = 0;
  bool is_short_ = false;  // of descriptors, as has been logged
  std::unique_ptr<EventLoop> loop_;
  std::list<std::shared_ptr<Client>> clients_;
  std::list<std::weak_ptr<Client>> waiting_;    // for a place among the reports
  std::list<std::unique_ptr<Report>> reports_;  // oldest first
  bool is_monitoring_ = false;
  std::map<ProcessName, diagnosis::StatusBoard::Known> seen_;  // by monitors so far
  Thread thread_;                                              // last: joined first
};

// The service of this process. Ends at exit; a child made by fork() has no service.
class Owner {
 public:
  void start(const Versions& versions, int rank) {
    std::lock_guard lock(mutex_);
    if (process_ == getpid()) return;
    if (process_ != 0) (void)service_.release();  // a parent's: neither thread nor sockets are ours
    process_ = getpid();
    const std::string address =
        parameters::ras_address().empty() ? "localhost:28028" : parameters::ras_address();
    Result<std::unique_ptr<Service>> service = Service::start(
        {.versions = versions, .address = address, .tells_of_other_jobs = rank == 0});
    if (!service.is_ok()) {
      const std::string text = fmt::format("RAS: this process does not answer at {}: {}", address,
                                           service.status().message());
      if (rank == 0)
        LOG(Warn, Ras, "{}", text);  // for all of them
      else
        LOG(Info, Ras, "{}", text);
      return;
    }
    service_ = std::move(service).take();
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

Result<std::unique_ptr<Service>> Service::start(ServiceOptions options) {
  auto server = std::make_unique<Server>(std::move(options));
  TRY(server->start());
  return std::unique_ptr<Service>(std::move(server));
}

void start_service(const Versions& versions, int rank) {
  if (parameters::ras_enable() == 0) return;
  static Owner owner;
  owner.start(versions, rank);
}

}  // namespace niccolite::ras
