// The port itself, with collections that a test holds up.
#include "ras/service.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/address.h"
#include "base/fd.h"
#include "base/socket.h"
#include "tests/base/full_descriptors.h"

namespace {
std::atomic<int> accepts{0};
}

// The library's calls come here, to be counted.
extern "C" int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  ++accepts;
  return static_cast<int>(syscall(SYS_accept4, fd, address, length, flags));
}

namespace niccolite::ras {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class ServiceTest : public testing::Test {
 protected:
  void start(ServiceOptions options) {
    // A port that nobody listened at a moment ago.
    const Address any = Address::parse("127.0.0.1:1").value().with_port(0);
    address_ = Socket::listen(any).value().local_address().value();
    options.address = "127.0.0.1:" + std::to_string(address_.port());
    Result<std::unique_ptr<Service>> service = Service::start(std::move(options));
    ASSERT_TRUE(service.is_ok()) << service.status().message();
    service_ = std::move(service).take();
  }
  static Fd open() {
    Fd connection(socket(AF_INET, SOCK_STREAM, 0));
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return connection;
  }
  void connect_to(const Fd& connection) const {
    sockaddr_storage storage;
    const socklen_t length = address_.to_sockaddr(&storage);
    ASSERT_EQ(::connect(connection.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
  }
  static void say(const Fd& connection, std::string_view text) {
    ASSERT_EQ(send(connection.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  /// Until the end, or until `most` bytes have come.
  static std::string hear(const Fd& connection, size_t most = SIZE_MAX) {
    std::string text;
    std::vector<char> bytes(65536);
    while (text.size() < most) {
      const size_t room = std::min(bytes.size(), most - text.size());
      const ssize_t count = recv(connection.get(), bytes.data(), room, 0);
      if (count <= 0) break;
      text.append(bytes.data(), static_cast<size_t>(count));
    }
    return text;
  }
  std::string ask(std::string_view commands) const {
    const Fd connection = open();
    connect_to(connection);
    say(connection, commands);
    return hear(connection);
  }

  Address address_;
  std::unique_ptr<Service> service_;
};

/// Collections that end when they are cancelled, and how many are under way.
struct Standstill {
  Job operator()(const Deadline&, Abort& cancel) {
    ++*running;
    while (!cancel.raised()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --*running;
    return {};
  }
  void wait_for(int count) const {
    while (*running != count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::shared_ptr<std::atomic<int>> running = std::make_shared<std::atomic<int>>(0);
};

// The listener does not share its port. Nor does a job of another user.
TEST(ServiceWithoutItsPort, NamesWhoHasIt) {
  const Socket taken = Socket::listen(Address::parse("127.0.0.1:1").value().with_port(0)).take();
  const Address address = taken.local_address().value();
  const auto service =
      Service::start({.versions = {}, .address = fmt::format("127.0.0.1:{}", address.port())});
  ASSERT_FALSE(service.is_ok());
  EXPECT_THAT(service.status().message(),
              AllOf(StartsWith(fmt::format("process {} (", getpid())),
                    HasSubstr("listens at " + address.text()), HasSubstr("NCCL_RAS_ADDR=")));
}

TEST_F(ServiceTest, AnswersOthersWhileItCollects) {
  const Standstill standstill;
  start({.versions = {}, .address = {}, .collect = standstill});
  const Fd patient = open(), other = open();
  connect_to(patient);
  say(patient, "TIMEOUT 0\nSTATUS\n");
  standstill.wait_for(1);
  connect_to(other);
  say(other, "CLIENT PROTOCOL 2\n");
  EXPECT_EQ(hear(other, 18), "SERVER PROTOCOL 2\n");
  service_.reset();  // waits for nobody
  EXPECT_EQ(*standstill.running, 0);
}

TEST_F(ServiceTest, EndsWhatAClientThatHasGoneWanted) {
  const Standstill standstill;
  start({.versions = {}, .address = {}, .collect = standstill});
  Fd impatient = open();
  connect_to(impatient);
  say(impatient, "TIMEOUT 0\nSTATUS\n");
  standstill.wait_for(1);
  impatient.reset();
  standstill.wait_for(0);
}

// More than are collected at once: those that wait for their turn get it.
TEST_F(ServiceTest, ManyWithoutTimeoutKeepNobodyOut) {
  const Standstill standstill;
  start({.versions = {}, .address = {}, .collect = standstill});
  std::vector<Fd> patient;
  for (int i = 0; i < 8; ++i) {
    patient.push_back(open());
    connect_to(patient.back());
    say(patient.back(), "TIMEOUT 0\nSTATUS\n");
  }
  standstill.wait_for(8);
  patient.push_back(open());
  connect_to(patient.back());
  say(patient.back(), "TIMEOUT 0\nSTATUS\n");
  EXPECT_THAT(hear(patient.front()), HasSubstr("No communicator data collected!"));
  standstill.wait_for(8);
}

TEST_F(ServiceTest, TriesNowAndThenWhereNoDescriptorsAreLeft) {
  start({.versions = {}, .address = {}});
  const Fd client = open();
  {
    const test::FullDescriptors none;
    const auto start = std::chrono::steady_clock::now();
    const int before = accepts;
    connect_to(client);
    while (accepts < before + 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto tried = accepts - before;
    const auto since = std::chrono::steady_clock::now() - start;
    EXPECT_LE(tried, since / std::chrono::milliseconds(100) + 2);
  }
  say(client, "CLIENT PROTOCOL 2\n");
  EXPECT_EQ(hear(client, 18), "SERVER PROTOCOL 2\n");
}

TEST_F(ServiceTest, TimeoutsBeyondADayAreADay) {
  auto patience = std::make_shared<std::atomic<int64_t>>(0);
  const auto collect = [patience](const Deadline& deadline, Abort&) -> Job {
    *patience = (deadline.at() - Deadline::Clock::now()) / std::chrono::hours(1);
    return {};
  };
  start({.versions = {}, .address = {}, .collect = collect});
  EXPECT_THAT(ask("TIMEOUT 2147483647\nSTATUS\n"), HasSubstr("No communicator data collected!"));
  EXPECT_EQ(*patience, 23) << "and some minutes";
}

TEST_F(ServiceTest, AReportMayBeLargerThanWhatAClientMayLeaveUnread) {
  const auto collect = [](const Deadline&, Abort&) -> Job {
    Job job;
    for (uint64_t id = 0; id < 100'000; ++id)
      job.communicators.push_back({.id = id, .nranks = 1, .ranks = {}, .missing = {}});
    return job;
  };
  start({.versions = {}, .address = {}, .most_unread = 65536, .collect = collect});
  const std::string report = ask("SET FORMAT json\nSTATUS\n");
  EXPECT_GT(report.size(), 16'000'000u);
  EXPECT_TRUE(report.ends_with("}\n"));
}

// Who only stands there gives way to who comes.
TEST_F(ServiceTest, ASilentClientGivesItsDescriptorAway) {
  start({.versions = {}, .address = {}});
  const Fd silent = open(), client = open();
  connect_to(silent);
  say(silent, "CLIENT PROTOCOL 2\n");
  EXPECT_EQ(hear(silent, 18), "SERVER PROTOCOL 2\n");
  const test::FullDescriptors none;
  connect_to(client);
  say(client, "CLIENT PROTOCOL 2\n");
  EXPECT_EQ(hear(client, 18), "SERVER PROTOCOL 2\n");
}

}  // namespace
}  // namespace niccolite::ras
