// Connections between machines that break, again and again, while ranks compute: no byte is lost,
// none comes twice.

#include <gmock/gmock.h>

#include "tests/multi_process/process.h"
#include "tests/multi_process/programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/multi_process/relay.h"

namespace niccolite::test {
namespace {

using relay::Harm;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// id id nranks first count seed harms bytes rounds
ROLE(harmed) {
  const auto number = [&](size_t i) { return std::stoi(arguments[i]); };
  relay::start(static_cast<uint64_t>(number(5)), static_cast<unsigned>(number(6)),
               static_cast<uint64_t>(number(7)));
  const int nranks = number(2);
  LocalRanks one(to_id(arguments[0]), nranks, number(3), number(4));
  LocalRanks two(to_id(arguments[1]), nranks, number(3), number(4));
  bool is_right = true;
  for (int round = 0; round < number(8); ++round)
    for (const size_t count : {1'000'003u, 3u, 40'000u}) is_right &= one.all_reduce(count);
  is_right &= perform_programs(one, two, {.nranks = nranks, .first_rank = number(3), .random = 10});
  std::printf("BREAKS %d\n", relay::breaks());
  relay::behave();
  one.destroy();
  two.destroy();
  return is_right ? 0 : 1;
}

struct Trouble {
  std::string name;
  unsigned harms;
  int devices;  // of each of the two machines
  int bytes;    // between two harms of a connection
  int rounds;
  int expected;  // breaks at least, in all processes
  std::string sockets = "1";
  std::string buffer = "131072";   // its eighth is a chunk, of which a connection has to carry some
  std::string direct_bytes = "1";  // smallest chunks that go from and to users' buffers
  std::string protocol{};          // empty: the library chooses
};

std::ostream& operator<<(std::ostream& out, const Trouble& trouble) { return out << trouble.name; }

class BrokenStreams : public testing::TestWithParam<Trouble> {};

TEST_P(BrokenStreams, LoseNothing) {
  const Trouble& trouble = GetParam();
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> running;
  for (int machine = 0; machine < 2; ++machine)
    running.emplace_back(
        "harmed",
        Arguments{to_text(ids[0]), to_text(ids[1]), std::to_string(2 * trouble.devices),
                  std::to_string(machine * trouble.devices), std::to_string(trouble.devices),
                  std::to_string(machine + 1), std::to_string(trouble.harms),
                  std::to_string(trouble.bytes), std::to_string(trouble.rounds)},
        Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(machine)},
                             {"NCCL_SET_THREAD_NAME", "1"},  // for the relay
                             // A machine whose disk is busy may stop a process for seconds.
                             {"NICCOLITE_STALL_WARNING", "120"},
                             {"NCCL_NSOCKS_PERTHREAD", trouble.sockets},
                             {"NICCOLITE_NET_DIRECT_BYTES", trouble.direct_bytes},
                             {"NCCL_BUFFSIZE", trouble.buffer},
                             {"NCCL_PROTO", trouble.protocol},
                             {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "1"}});
  int breaks = 0;
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
    const size_t at = process.output().find("BREAKS ");
    if (at != std::string::npos) breaks += std::stoi(process.output().substr(at + 7));
  }
  EXPECT_GE(breaks, trouble.expected);
}

constexpr unsigned kEverything = (Harm::Reset | Harm::ResetOne) | (Harm::HalfClose | Harm::Stall) |
                                 static_cast<unsigned>(Harm::Delay);

INSTANTIATE_TEST_SUITE_P(
    , BrokenStreams,
    testing::Values(
        Trouble{"resets", static_cast<unsigned>(Harm::Reset), 1, 80'000, 10, 1'000, "2"},
        Trouble{"everything", kEverything, 2, 400'000, 3, 50, "1", "4194304"},
        Trouble{"several_sockets", kEverything, 1, 100'000, 3, 100, "3"},
        Trouble{"through_slots", kEverything, 1, 400'000, 3, 50, "2", "4194304", "1099511627776"},
        Trouble{"by_words", kEverything, 2, 100'000, 2, 50, "2", "131072", "1", "LL"}),
    [](const auto& trouble) { return trouble.param.name; });

}  // namespace
}  // namespace niccolite::test
