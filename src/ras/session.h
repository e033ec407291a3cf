// Session: the conversation with one client of the RAS port: lines of text in, answers out
// (reference: ras 3.1, 3.2). Two commands are ours: VERDICT, a line for each operation that stands
// still, with the cause, and STRAGGLERS, a line for each rank that comes late to operations. Knows
// no sockets. Thread safety: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace niccolite::ras {

class Session {
 public:
  /// Longer lines end the session.
  static constexpr size_t kMostLine = 1024;
  static constexpr unsigned kLifecycle = 0x01, kTrace = 0x02, kAllEvents = 0xff;

  static constexpr std::chrono::seconds kDefaultTimeout{5};

  struct Request {
    bool wants_verdicts = false;    // for whom operations stand still, and nothing else
    bool wants_stragglers = false;  // ranks that come late to operations, and nothing else
    bool is_json = false;
    bool is_verbose = false;
    std::optional<std::chrono::seconds> timeout;  // 0: none; nothing: the default
  };
  /// The next step of the connection after the client's words, besides answers.
  enum class Next : uint8_t {
    Listen,  // to more of them
    Report,  // the client gets the answer to request(), and then its connection ends
    End      // of the connection, at once
  };

  /// Takes bytes from the client; answers go to `out`. Must not be called again after another
  /// result than Listen.
  Next receive(std::string_view bytes, const std::function<void(std::string_view)>& out);
  const Request& request() const { return request_; }
  /// The events that the client wants (kLifecycle, kTrace); 0: none.
  unsigned monitors() const { return monitors_; }
  bool wants_json() const { return request_.is_json; }

 private:
  Next obey(std::string_view line, const std::function<void(std::string_view)>& out);
  std::string set_timeout(std::string_view value);
  std::string set_monitors(std::string_view groups);

  Request request_;
  std::string line_;  // that is not yet whole
  unsigned monitors_ = 0;
};

}  // namespace niccolite::ras
