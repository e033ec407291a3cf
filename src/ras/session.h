// Session: what one client of the RAS port says and hears: lines of text in, answers out
// (reference: ras 3.1, 3.2). Two commands are ours: VERDICT, a line for each operation that stands
// still, and why, and STRAGGLERS, a line for each rank that comes late to operations. Knows no
// sockets. Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace niccolite::ras {

class Session {
 public:
  /// Longer lines end the session.
  static constexpr size_t kMostLine = 1024;
  static constexpr unsigned kLifecycle = 0x01, kTrace = 0x02, kAllEvents = 0xff;

  struct Request {
    bool wants_verdicts = false;    // for whom operations stand still, and nothing else
    bool wants_stragglers = false;  // who comes late to operations, and nothing else
    bool is_json = false;
    bool is_verbose = false;
    std::chrono::seconds timeout{5};  // 0: none
  };
  /// Sends a whole report through `out`, in parts as they are ready.
  using Report =
      std::function<void(const Request& request, const std::function<void(std::string_view)>& out)>;

  explicit Session(Report report) : report_(std::move(report)) {}

  /// Bytes from the client; what it is to hear goes to `out`. False: it hears nothing more, and its
  /// connection ends.
  bool receive(std::string_view bytes, const std::function<void(std::string_view)>& out);
  /// The events that the client wants (kLifecycle, kTrace); 0: none.
  unsigned monitors() const { return monitors_; }
  bool wants_json() const { return request_.is_json; }

 private:
  bool obey(std::string_view line, const std::function<void(std::string_view)>& out);
  std::string set_timeout(std::string_view value);
  std::string set_monitors(std::string_view groups);

  const Report report_;
  Request request_;
  std::string line_;  // that is not yet whole
  unsigned monitors_ = 0;
};

}  // namespace niccolite::ras
