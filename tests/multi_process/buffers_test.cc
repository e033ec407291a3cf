// Buffers that are in no window, of ranks in several processes: which of them collectives use
// directly, that results are right whatever becomes of the memory, and that nothing of it is kept.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/multi_process/buffer_ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;

size_t count_lines(const std::string& path, std::string_view text) {
  std::ifstream file(path);
  size_t lines = 0;
  for (std::string line; std::getline(file, line);) lines += line.find(text) != std::string::npos;
  return lines;
}

/// Mappings of virtual GPUs' memory, of this process and of others.
size_t count_mappings() { return count_lines("/proc/self/maps", "memfd"); }

/// Waits until it is true, half a minute at most.
bool becomes(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

using Handles = std::vector<std::pair<ncclComm_t, void*>>;

/// The buffers of an operation of 30,001 integers, of the ranks of this process.
Handles register_all(BufferRanks& ranks, const Trial& trial) {
  Handles handles;
  for (size_t i = 0; i < ranks.ranks().comms.size(); ++i) {
    for (void* buffer : {trial.input(ranks.rank(i)), trial.output(ranks.rank(i))}) {
      handles.emplace_back(ranks.ranks().comms[i], nullptr);
      REQUIRE_NCCL(ncclCommRegister(handles.back().first, buffer, 30'001 * sizeof(int),
                                    &handles.back().second));
    }
  }
  return handles;
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  for (const Kind kind : kCollectives)
    for (const bool in_place : {false, true})
      all.push_back({.kind = kind,
                     .type = ncclInt32,
                     .count = 30'001,
                     .in_place = in_place,
                     .misalignment = all.size() % 3 * sizeof(int),
                     .salt = all.size() + 1});
  all.push_back(
      {.kind = Kind::Message, .type = ncclInt8, .count = 120'007, .root = 0, .receiver = 1});
  return all;
}

// ---- plain buffers: the first call copies, later ones go direct

ROLE(use_plain_buffers) {
  BufferRanks ranks(arguments);
  for (const Operation& operation : operations()) {
    Trial trial(operation, ranks.nranks());
    const size_t before = ranks.direct_calls();
    Attempts attempts;
    for (int round = 0;; ++round) {
      trial.reset();
      if (!ranks.call(trial)) return 1;
      // Not all ranks have a buffer that others use; then the third round is the last.
      const bool is_partial = has_root(operation.kind) || operation.kind == Kind::Message;
      const bool is_direct = ranks.direct_calls() > before || (is_partial && round > 2);
      if (ranks.is_true_everywhere(is_direct)) break;
      if (!attempts.go_on(is_direct ? "a peer goes direct" : "this rank goes direct")) {
        std::cout << operation << "\n";
        ranks.print_log();
        return 2;
      }
    }
  }
  ranks.ranks().destroy();
  return 0;
}

// What keeps a process from mapping a buffer may pass.
ROLE(map_buffers_later) {
  BufferRanks ranks(arguments);
  const Operation operation{.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001};
  Trial first(operation, ranks.nranks());
  if (!ranks.call(first) || !ranks.is_true_everywhere(true)) return 1;  // all are connected

  const bool is_first = ranks.rank(0) == 0;
  std::optional<NoDescriptors> lack;
  if (!is_first) lack.emplace();
  if (!ranks.is_true_everywhere(true)) return 1;  // they lack them before they are asked
  LogLines refusals(arguments[4], "cannot map buffer");
  Trial second(operation, ranks.nranks());
  Attempts to_fail;
  do {
    second.reset();
    if (!ranks.call(second)) return 3;
    if (ranks.is_true_everywhere(!is_first || refusals.count() > 0)) break;
  } while (to_fail.go_on("a process without descriptors maps no buffer"));
  lack.reset();

  // Others are those of is_true_everywhere().
  LogLines offers(arguments[4], "(count 30001, int32, sum): peers are offered");
  const size_t calls = offers.count();
  Attempts to_go_direct;
  do {
    second.reset();
    if (!ranks.call(second)) return 4;
    if (ranks.is_true_everywhere(!is_first || offers.count() > calls)) {
      ranks.ranks().destroy();
      return 0;
    }
  } while (to_go_direct.go_on("a buffer that could not be mapped goes direct"));
  ranks.print_log();
  return 5;
}

// Ranks agree to plan for buffers that all reach, and, when buffers come and go, for slots again.
/// Calls until rank 0 tells that plans are those for `what`. False: they never are, or a call
/// fails.
bool goes_on_until(BufferRanks& ranks, const std::string& log, const std::string& what,
                   const std::function<bool()>& call) {
  LogLines changes(log, "on, plans are those for " + what);
  Attempts attempts;
  do {
    for (int i = 0; i < 10; ++i)
      if (!call()) return false;
    const bool is_told = ranks.rank(0) != 0 || changes.count() > 0;
    if (ranks.is_true_everywhere(is_told)) return true;
  } while (attempts.go_on("plans are those for " + what));
  ranks.print_log();
  return false;
}

// Where only the last process cannot map the buffers of the others, those offer them to the rest;
// but plans are not for buffers that all ranks reach until it can.
ROLE(map_buffers_later_on_the_last) {
  BufferRanks ranks(arguments);
  const std::string& log = arguments[4];
  Trial first({.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  if (!ranks.call(first) || !ranks.is_true_everywhere(true)) return 1;  // all are connected

  std::optional<NoDescriptors> lack;
  if (ranks.rank(0) == ranks.nranks() - 1) lack.emplace();
  if (!ranks.is_true_everywhere(true)) return 1;  // it lacks them before it is asked
  Trial second({.kind = Kind::AllReduce, .type = ncclInt32, .count = 40'001}, ranks.nranks());
  const auto call = [&] {
    second.reset();
    return ranks.call(second);
  };
  LogLines offers(log, "(count 40001, int32, sum): peers are offered input and output");
  LogLines changes(log, "on, plans are those for");
  constexpr size_t kCalls = 10;
  const auto all_calls_offer = [&] {
    const size_t before = offers.count();
    for (size_t i = 0; i < kCalls; ++i)
      if (!call()) std::exit(3);
    return lack || offers.count() - before == kCalls;  // who lacks descriptors cannot read its log
  };
  Attempts to_offer;
  while (!ranks.is_true_everywhere(all_calls_offer())) {
    if (to_offer.go_on("buffers are offered to those who can map them")) continue;
    ranks.print_log();
    return 4;
  }
  for (int i = 0; i < 10; ++i) all_calls_offer();
  if (!ranks.is_true_everywhere(changes.count() == 0)) {
    std::cout << "plans are for buffers that a rank does not reach\n";
    ranks.print_log();
    return 5;
  }
  lack.reset();
  if (!goes_on_until(ranks, log, "buffers that all ranks reach", call)) return 6;
  ranks.ranks().destroy();
  return 0;
}

ROLE(agree_on_plans) {
  BufferRanks ranks(arguments);
  const Operation operation{.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001};
  Trial stays(operation, ranks.nranks());
  const auto call_again = [&] {
    stays.reset();
    return ranks.call(stays);
  };
  const std::string& log = arguments[4];
  if (!goes_on_until(ranks, log, "buffers that all ranks reach", call_again)) return 1;
  std::vector<std::unique_ptr<Trial>> others;  // not freed: each call has memory of its own
  const auto call_with_new = [&] {
    others.push_back(std::make_unique<Trial>(operation, ranks.nranks()));
    return ranks.call(*others.back());
  };
  if (!goes_on_until(ranks, log, "slots", call_with_new)) return 2;
  ranks.ranks().destroy();
  return 0;
}

// The root of reduces offers none of its buffers, and has nothing to wait for.
ROLE(agree_on_plans_of_reduces) {
  BufferRanks ranks(arguments);
  Trial trial({.kind = Kind::Reduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  const auto call = [&] {
    trial.reset();
    return ranks.call(trial);
  };
  if (!goes_on_until(ranks, arguments[4], "buffers that all ranks reach", call)) return 1;
  ranks.ranks().destroy();
  return 0;
}

// Memory that is freed and comes back with other contents, at the same addresses.
ROLE(reuse_addresses) {
  BufferRanks ranks(arguments);
  for (size_t round = 0; round < 60; ++round) {
    Trial trial({.kind = kCollectives[round % std::size(kCollectives)],
                 .type = ncclInt32,
                 .count = 20'000 + round % 7 * 1000,
                 .salt = round + 1},
                ranks.nranks());
    for (int turn = 0; turn < 3; ++turn) {
      trial.reset();
      if (!ranks.call(trial)) return 1;
    }
  }
  // Peers let go of all of it.
  const bool is_direct = ranks.direct_calls() > 0;
  ranks.ranks().destroy();
  std::printf("DIRECT %d\n", is_direct);
  return 0;
}

// ---- lists: the calls of a group that are alike share a launch, and go direct together

/// Trials of one kind, as of several tensors.
std::vector<std::unique_ptr<Trial>> tensors(Kind kind, size_t salt, int nranks) {
  std::vector<std::unique_ptr<Trial>> trials;
  for (const size_t count : {size_t{1}, size_t{700}, size_t{30'001}, size_t{5'000}, size_t{12}})
    trials.push_back(
        std::make_unique<Trial>(Operation{.kind = kind,
                                          .type = ncclInt32,
                                          .count = count + salt % 3,
                                          .root = nranks - 1,
                                          .in_place = (count + salt) % 2 == 0,
                                          .misalignment = (count + salt) % 3 == 0 ? sizeof(int) : 0,
                                          .salt = salt + count},
                                nranks));
  return trials;
}

bool call_together(BufferRanks& ranks, const std::vector<std::unique_ptr<Trial>>& trials) {
  std::vector<const Trial*> all;
  for (const auto& trial : trials) all.push_back(trial.get());
  return ranks.call(all);
}

ROLE(run_lists) {
  BufferRanks ranks(arguments);
  constexpr Kind kKinds[] = {Kind::AllReduce, Kind::Reduce, Kind::Broadcast, Kind::ReduceScatter,
                             Kind::AllGather};
  for (const Kind kind : kKinds) {
    const auto trials = tensors(kind, 0, ranks.nranks());
    for (Attempts attempts;;) {
      for (const auto& trial : trials) trial->reset();
      const size_t before = ranks.direct_calls();
      if (!call_together(ranks, trials)) return 1;
      // Of a call by itself, no rank offers buffers of so few bytes.
      const size_t offered = ranks.direct_calls() - before;
      if (ranks.is_true_everywhere(offered == trials.size() * ranks.ranks().comms.size())) break;
      if (!attempts.go_on(std::to_string(trials.size()) + " calls go direct together")) {
        std::cout << trials[0]->operation() << " and others\n";
        ranks.print_log();
        return 2;
      }
    }
  }
  // Buffers that some rank does not see yet: theirs go through slots, in the same launch.
  for (size_t round = 0; round < 30; ++round) {
    const auto trials = tensors(kKinds[round % std::size(kKinds)], round, ranks.nranks());
    for (int turn = 0; turn < 2; ++turn) {
      for (const auto& trial : trials) trial->reset();
      if (!call_together(ranks, trials)) return 1;
    }
  }
  ranks.ranks().destroy();
  return 0;
}

// ---- registered buffers go direct from the first call on

bool use_registered(BufferRanks& ranks, const Trial::Place& place) {
  Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, ranks.nranks(), place);
  const auto goes_direct = [&] {
    trial.reset();
    const size_t before = ranks.direct_calls();
    if (!ranks.call(trial)) std::exit(1);
    return ranks.direct_calls() - before;
  };
  const auto all = static_cast<size_t>(ranks.ranks().count());
  if (goes_direct() != 0) return false;
  const Handles handles = register_all(ranks, trial);
  const size_t at_once = goes_direct();
  const size_t again = goes_direct();
  for (const auto& [comm, handle] : handles) REQUIRE_NCCL(ncclCommDeregister(comm, handle));
  const size_t afterwards = goes_direct();
  std::printf("DIRECT %zu %zu %zu of %zu\n", at_once, again, afterwards, all);
  return at_once == all && again == all && afterwards == 0;
}

ROLE(use_registered_buffers) {
  BufferRanks ranks(arguments);
  const bool of_malloc = use_registered(ranks, nullptr);
  constexpr size_t kBytes = 16 << 20;
  std::vector<std::byte*> memory;
  std::vector<size_t> used(ranks.ranks().comms.size());
  for (size_t i = 0; i < used.size(); ++i) {
    void* made = nullptr;
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_NCCL(ncclMemAlloc(&made, kBytes));
    memory.push_back(static_cast<std::byte*>(made));
  }
  const bool of_mem_alloc = use_registered(ranks, [&](int rank, size_t bytes) -> void* {
    const auto i = static_cast<size_t>(rank - ranks.rank(0));
    if (i >= used.size()) return nullptr;
    std::byte* const place = memory[i] + used[i];
    used[i] += (bytes + 255) / 256 * 256;
    return used[i] <= kBytes ? place : nullptr;
  });
  for (std::byte* of_rank : memory) REQUIRE_NCCL(ncclMemFree(of_rank));
  ranks.ranks().destroy();
  return of_malloc && of_mem_alloc ? 0 : 2;
}

// ---- captured buffers go direct, as long as there is a graph of them

ROLE(use_captured_buffers) {
  BufferRanks ranks(arguments);
  Trial trial({.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  if (!ranks.call(trial)) return 1;
  if (ranks.direct_calls() != 0) return 2;
  if (!ranks.is_true_everywhere(true)) return 1;
  const size_t mappings = count_mappings();
  if (!ranks.is_true_everywhere(true)) return 1;  // all have counted
  std::vector<cudaGraphExec_t> graphs;
  for (size_t i = 0; i < ranks.ranks().comms.size(); ++i) {
    cudaStream_t stream = ranks.ranks().streams[i];
    cudaGraph_t graph = nullptr;
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    REQUIRE_NCCL(trial.call(ranks.rank(i), ranks.ranks().comms[i], stream));
    REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
    REQUIRE_CUDA(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
  }
  if (ranks.direct_calls() != graphs.size()) return 3;
  if (!ranks.is_true_everywhere(true)) return 1;  // all have captured
  const size_t captured = count_mappings();
  for (int turn = 0; turn < 3; ++turn) {
    trial.reset();
    if (!ranks.is_true_everywhere(true)) return 1;  // buffers are set on all ranks
    for (size_t i = 0; i < graphs.size(); ++i)
      REQUIRE_CUDA(cudaGraphLaunch(graphs[i], ranks.ranks().streams[i]));
    if (!ranks.is_right(trial)) return 1;
  }
  for (cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
  const bool is_released = becomes([&] { return count_mappings() < captured; });
  std::printf("MAPPINGS %zu %zu %zu\n", mappings, captured, count_mappings());
  if (!ranks.is_true_everywhere(is_released)) return 4;
  ranks.ranks().destroy();
  return captured > mappings ? 0 : 5;
}

// ---- freed memory is let go of, though nobody calls anything

ROLE(free_buffers) {
  BufferRanks ranks(arguments);
  size_t mapped = 0;
  {
    Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, ranks.nranks());
    size_t before = ranks.direct_calls();
    do {
      trial.reset();
      if (!ranks.call(trial)) return 1;
      mapped = count_mappings();  // before the others may free theirs
    } while (!ranks.is_true_everywhere(ranks.direct_calls() > before));
  }
  const bool is_released = becomes([&] { return count_mappings() < mapped; });
  std::printf("MAPPINGS %zu %zu\n", mapped, count_mappings());
  if (!ranks.is_true_everywhere(is_released)) return 4;
  ranks.ranks().destroy();
  return 0;
}

// ---- a registration may end while operations that use it wait for their turn

void pass_gate(void* is_open) { static_cast<std::atomic<bool>*>(is_open)->wait(false); }

ROLE(end_registrations_early) {
  BufferRanks ranks(arguments);
  LocalRanks& here = ranks.ranks();
  Trial trial({.kind = Kind::AllReduce, .type = ncclInt32, .count = 30'001}, ranks.nranks());
  const Handles handles = register_all(ranks, trial);
  if (!ranks.is_true_everywhere(true)) return 1;  // all have registered
  const size_t before = ranks.direct_calls();
  if (!ranks.call(trial)) return 1;
  if (!ranks.is_true_everywhere(ranks.direct_calls() == before + here.comms.size())) return 2;
  trial.reset();
  if (!ranks.is_true_everywhere(true)) return 1;  // buffers are set on all ranks

  std::atomic<bool> is_open = false;
  for (size_t i = 0; i < here.comms.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(ranks.rank(i)));
    REQUIRE_CUDA(cudaLaunchHostFunc(here.streams[i], &pass_gate, &is_open));
  }
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < here.comms.size(); ++i)
    REQUIRE_NCCL(trial.call(ranks.rank(i), here.comms[i], here.streams[i]));
  REQUIRE_NCCL(ncclGroupEnd());
  const size_t mapped = count_mappings();
  for (const auto& [comm, handle] : handles) REQUIRE_NCCL(ncclCommDeregister(comm, handle));
  // Long enough for those who do not wait for the operation.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  is_open = true;
  is_open.notify_all();
  if (!ranks.is_right(trial)) return 1;
  if (!ranks.is_true_everywhere(becomes([&] { return count_mappings() < mapped; }))) return 4;
  here.destroy();
  return 0;
}

// ---- a rank that has left is not waited for

ROLE(use_buffers_without_the_last) {
  BufferRanks ranks(arguments);
  const int last = ranks.nranks() - 1;
  if (ranks.rank(0) == last) {
    ranks.ranks().destroy();
    return 0;
  }
  LogLines ends(ranks.log_of_process(last), "Destroy COMPLETE");
  if (!becomes([&] { return ends.count() > 0; })) return 1;

  const Operation message{
      .kind = Kind::Message, .type = ncclInt32, .count = 30'001, .root = 0, .receiver = 1};
  Trial trial(message, ranks.nranks());
  const bool receives = ranks.rank(0) == message.receiver;
  void* handle = nullptr;
  if (receives)
    REQUIRE_NCCL(ncclCommRegister(ranks.ranks().comms[0], trial.output(message.receiver),
                                  message.count * sizeof(int), &handle));
  if (!ranks.call(trial)) return 2;
  if (receives && ranks.direct_calls() != 1) {
    ranks.print_log();
    return 3;
  }
  ranks.ranks().destroy();
  return 0;
}

TEST_P(BuffersOfProcesses, GoDirectFromTheSecondCallOn) { run("use_plain_buffers", "1G"); }
TEST_P(BuffersOfProcesses, GoDirectLaterWhereTheyCouldNotBeMapped) {
  SKIP_WHERE_SANITIZERS_NEED_DESCRIPTORS();
  run("map_buffers_later", "1G");
}
TEST_P(BuffersOfProcesses, HaveTheRanksAgreeOnPlans) { run("agree_on_plans", "1G"); }
TEST_P(BuffersOfProcesses, HaveTheRanksOfReducesAgreeOnPlans) {
  run("agree_on_plans_of_reduces", "1G");
}
TEST_P(BuffersOfProcesses, HaveTheRanksOfChainsAgreeOnPlans) {
  run("agree_on_plans_of_reduces", "1G", "ring,ring_halves");
}
TEST_P(BuffersOfProcesses, OfAlikeCallsGoDirectTogether) {
  run("run_lists", "1G", Process::Environment{});
}
TEST_P(BuffersOfProcesses, MayHaveAddressesThatWereOthersBefore) { run("reuse_addresses", "64M"); }
TEST_P(BuffersOfProcesses, GoDirectAsSoonAsTheyAreRegistered) {
  run("use_registered_buffers", "0");
}
TEST_P(BuffersOfProcesses, StayUntilOperationsAreDoneThatUseThem) {
  run("end_registrations_early", "0");
}
TEST_P(BuffersOfProcesses, GoDirectInGraphsAndAreReleasedWithThem) {
  run("use_captured_buffers", "0");
}
TEST_P(BuffersOfProcesses, AreReleasedWhenTheyAreFreed) { run("free_buffers", "1G"); }

INSTANTIATE_TEST_SUITE_P(, BuffersOfProcesses, kLayouts, name_of_layout);

class BuffersOfThree : public BuffersOfProcesses {};

TEST_P(BuffersOfThree, GoDirectToTheThirdLaterWhereItCouldNotMapThem) {
  SKIP_WHERE_SANITIZERS_NEED_DESCRIPTORS();
  run("map_buffers_later_on_the_last", "1G");
}

TEST_P(BuffersOfThree, GoDirectAtOnceThoughTheThirdHasLeft) {
  run("use_buffers_without_the_last", "0");
}

INSTANTIATE_TEST_SUITE_P(, BuffersOfThree, testing::Values(RankLayout{3, 1}), name_of_layout);

// id rank: rank 1 dies while rank 0's registered buffer is offered to it.
ROLE(buffer_survivor) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  Trial trial({.kind = Kind::AllGather, .type = ncclInt32, .count = 30'001}, 2);
  void* handles[2] = {};
  REQUIRE_NCCL(ncclCommRegister(ranks.comms[0], trial.input(rank), 4, &handles[0]));
  REQUIRE_NCCL(ncclCommRegister(ranks.comms[0], trial.output(rank), 4, &handles[1]));
  REQUIRE_NCCL(trial.call(rank, ranks.comms[0], ranks.streams[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  if (rank == 1) {
    std::printf("READY\n");
    std::fflush(stdout);
    for (;;) pause();
  }
  REQUIRE_NCCL(trial.call(rank, ranks.comms[0], ranks.streams[0]));
  std::printf("STARTED\n");
  std::fflush(stdout);
  const ncclResult_t state = ranks.finish();
  const bool waits = ranks.is_waiting();
  std::printf("STATE %d WAITS %d ABORTED %d\n", state, waits, ncclCommAbort(ranks.comms[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  return 0;
}

TEST(BuffersOfOtherProcesses, EndWhenAPeerIsKilledAndTheCommunicatorAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  const Process::Environment environment{{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "direct"}};
  Process survivor("buffer_survivor", {to_text(id), "0"}, environment);
  Process victim("buffer_survivor", {to_text(id), "1"}, environment);
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  ASSERT_TRUE(survivor.wait_for_line("STARTED")) << survivor.output();
  victim.kill(SIGKILL);
  EXPECT_EQ(survivor.wait(seconds(30)), 0) << survivor.output();
  EXPECT_NE(survivor.output().find("STATE 6 WAITS 1 ABORTED 0"), std::string::npos)
      << survivor.output();
}

}  // namespace
}  // namespace niccolite::test
