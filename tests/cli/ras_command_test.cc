// `niccolite ras` towards a job some of whose processes are stopped. They share a port, and the
// system gives each connection to any of them.
#include "cli/ras/command.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/socket.h"

namespace niccolite::ras_command {
namespace {

/// Answers those connections that it is told to, by their number from 0 on, and no others.
class Job {
 public:
  explicit Job(std::function<bool(int)> answers)
      : answers_(std::move(answers)), thread_([this] { serve(); }) {}
  ~Job() {
    is_over_.store(true, std::memory_order_relaxed);  // only ends the loop
    thread_.join();
  }

  Options options() const {
    Options options;
    options.host = "127.0.0.1";
    options.port = listener_.local_address().value().port();
    return options;
  }
  int connections() const { return connections_.load(std::memory_order_relaxed); }

 private:
  void serve() {
    std::vector<Socket> silent;
    while (!is_over_.load(std::memory_order_relaxed)) {
      pollfd ready{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
      int error = 0;
      if (poll(&ready, 1, 20) <= 0) continue;
      std::optional<Socket> client = listener_.accept(&error).take();
      if (!client) continue;
      const int number = connections_.fetch_add(1, std::memory_order_relaxed);
      if (answers_(number)) {
        answer(*client);
      } else {
        silent.push_back(std::move(*client));
      }
    }
  }

  static void answer(const Socket& client) {
    std::string heard;
    bool has_greeted = false;
    while (true) {
      pollfd ready{.fd = client.fd(), .events = POLLIN, .revents = 0};
      if (poll(&ready, 1, 5000) <= 0) return;
      char bytes[256];
      const ssize_t got = ::recv(client.fd(), bytes, sizeof bytes, 0);
      if (got <= 0) return;
      heard.append(bytes, static_cast<size_t>(got));
      if (!has_greeted && heard.find('\n') != std::string::npos) {
        has_greeted = true;
        say(client, "SERVER PROTOCOL 2\n");
      }
      if (heard.find("VERDICT\n") != std::string::npos)
        return say(client, "the operation stands still: rank 1 is stopped\n");
      if (heard.find("STATUS\n") != std::string::npos) return say(client, "all about the job\n");
      if (heard.find("STRAGGLERS\n") != std::string::npos) return;
    }
  }
  static void say(const Socket& client, std::string_view text) {
    (void)::send(client.fd(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  const std::function<bool(int)> answers_;
  const Socket listener_ =
      Socket::listen(Address::parse("127.0.0.1:1").value().with_port(0)).take();
  std::atomic<bool> is_over_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

TEST(RasCommand, AsksAnotherProcessWhereOneIsStopped) {
  const Job job([](int connection) { return connection % 2 == 0; });
  testing::internal::CaptureStdout();
  EXPECT_EQ(run(job.options()), 1);
  EXPECT_THAT(
      testing::internal::GetCapturedStdout(),
      testing::AllOf(testing::HasSubstr("all about the job"), testing::HasSubstr("Standstills"),
                     testing::HasSubstr("rank 1 is stopped")));
}

TEST(RasCommand, SaysSoWhereNobodyTellsWhatStandsStill) {
  const Job job([](int connection) { return connection == 0; });
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(job.options()), 2);
  testing::internal::GetCapturedStdout();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("stopped"));
  EXPECT_GT(job.connections(), 10);
}

}  // namespace
}  // namespace niccolite::ras_command
