// From the calls of a group to launches: how many there are, and that no rank waits for ever.
#include "operations/batches.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <random>
#include <tuple>

#include "tests/calls/calls.h"

namespace niccolite::operations {

using namespace calls;
namespace {

using executor::Protocol;

planner::Settings settings_for(gpu::Kind machine, int nranks) {
  return planner::make_settings(machine, nranks, {}).take();
}

Task task_of(const Call& call) {
  Task task;
  task.call = call;
  return task;
}

/// A batch carries the plans that were made to decide on it, in the order of its calls.
void expect_plans_of_its_calls(const Batch& batch) {
  const bool is_shared = batch.is_list || batch.most_channels > 0;
  EXPECT_TRUE(!is_shared || batch.plans.size() == batch.tasks.size());
  for (size_t work = 0; work < batch.plans.size(); ++work) {
    const planner::Request& request = batch.tasks[work]->call.request;
    const planner::Plan& plan = batch.plans[work];
    EXPECT_EQ(plan.list_access.has_value(), batch.goes_direct);
    if (request.collective != Collective::AllReduce) continue;
    EXPECT_EQ(plan.type, request.type);
    EXPECT_EQ(plan.partitions[0].count, request.count);
  }
}

/// The batches of one rank's group.
std::vector<Batch> batches_of(const planner::Settings& settings, int rank,
                              const std::vector<Task>& tasks, bool is_captured = false) {
  planner::Planner planner(settings, rank);
  std::vector<Batch> batches = make_batches(tasks, planner, is_captured).take();
  for (const Batch& batch : batches) expect_plans_of_its_calls(batch);
  return batches;
}

constexpr size_t kFloat = 4;

TEST(Batches, TakeSmallMessagesOfAPairTogether) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  for (const size_t bytes : {size_t{8}, size_t{256}, size_t{8} << 10}) {
    std::vector<Task> tasks;
    for (int i = 0; i < 8; ++i) {
      tasks.push_back(task_of(send(1, bytes / kFloat)));
      tasks.push_back(task_of(receive(1, bytes / kFloat)));
    }
    const std::vector<Batch> batches = batches_of(settings, 0, tasks);
    ASSERT_EQ(batches[0].protocol, Protocol::LL) << bytes;
    ASSERT_EQ(batches.size(), 1u) << bytes;
    EXPECT_EQ(batches[0].layers, std::vector<size_t>(8, 2));
    EXPECT_EQ(batches[0].tasks.size(), 16u);
  }
}

TEST(Batches, LeaveEachLargeMessageALaunch) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks;
  for (int i = 0; i < 3; ++i) tasks.push_back(task_of(send(1, size_t{64} << 20)));
  const std::vector<Batch> batches = batches_of(settings, 0, tasks);
  EXPECT_EQ(batches.size(), 3u);
  for (const Batch& batch : batches) EXPECT_EQ(batch.layers, std::vector<size_t>{1});
}

TEST(Batches, KeepTheOrderOfAPair) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks;
  for (const size_t count : {2u, 16u << 20, 3u, 4u, 16u << 20, 5u})
    tasks.push_back(task_of(send(1, count)));
  std::vector<size_t> counts;
  for (const Batch& batch : batches_of(settings, 0, tasks))
    for (const Task* task : batch.tasks) counts.push_back(task->call.request.count);
  EXPECT_EQ(counts, std::vector<size_t>({2, 16 << 20, 3, 4, 16 << 20, 5}));
}

// About a message to the own rank nobody else has to be asked: it goes with others, unless these
// are too slow for it.
TEST(Batches, TakeMessagesToTheOwnRankWithOthers) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  const auto group_of = [&](size_t copied, size_t sent) {
    return std::vector<Task>{task_of(send(0, copied)), task_of(receive(0, copied)),
                             task_of(send(1, sent)), task_of(receive(1, sent))};
  };
  constexpr size_t kMiB = (1 << 20) / kFloat;
  for (const size_t copied : {kMiB / 100, 3 * kMiB, 8 * kMiB}) {
    const std::vector<Task> tasks = group_of(copied, 4 * kMiB);
    const std::vector<Batch> batches = batches_of(settings, 0, tasks);
    ASSERT_EQ(batches.size(), 1u) << copied;
    EXPECT_EQ(batches[0].protocol, Protocol::Simple);
    EXPECT_EQ(batches[0].tasks.size(), 3u);
  }
  // Bulk copies beside threads that send.
  for (const size_t sent : {size_t{100}, kMiB / 2}) {
    const std::vector<Task> tasks = group_of(3 * kMiB, sent);
    const std::vector<Batch> batches = batches_of(settings, 0, tasks);
    ASSERT_EQ(batches.size(), 2u) << sent;
    EXPECT_NE(batches[0].protocol, Protocol::Simple);
    EXPECT_EQ(batches[1].protocol, Protocol::Simple);
    EXPECT_TRUE(batches[1].is_beside);
  }
}

TEST(Batches, LeaveOutEmptyMessagesToTheOwnRankBesideOthers) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks{task_of(send(0, 0)), task_of(receive(0, 0)), task_of(send(1, 1 << 20))};
  const std::vector<Batch> batches = batches_of(settings, 0, tasks);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].tasks, std::vector<const Task*>{&tasks[2]});
  tasks.pop_back();
  EXPECT_EQ(batches_of(settings, 0, tasks).size(), 1u);
}

// They have different connections; those of one protocol follow each other.
TEST(Batches, LetMessagesOfDifferentProtocolsRunSideBySide) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks{task_of(all_reduce(1 << 24))};
  for (const size_t bytes : {8u << 20, 64u, 1u << 20, 8u << 20, 64u})
    tasks.push_back(task_of(send(1, bytes / kFloat)));
  std::vector<std::pair<Protocol, bool>> messages;
  for (const Batch& batch : batches_of(settings, 0, tasks)) {
    if (batch.holds_messages())
      messages.emplace_back(batch.protocol, batch.is_beside);
    else
      EXPECT_FALSE(batch.is_beside);
  }
  const std::vector<std::pair<Protocol, bool>> expected{{Protocol::Simple, false},
                                                        {Protocol::LL, true},
                                                        {Protocol::LL128, true},
                                                        {Protocol::Simple, false},
                                                        {Protocol::LL, true}};
  EXPECT_EQ(messages, expected);
}

// Both ends of a message cut it alike, whatever else their groups hold, where it goes direct and
// where it does not.
TEST(Batches, PlanMessagesThatGoDirectAlikeAtBothEnds) {
  planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  planner::set_reach(settings, /*reaches_users=*/false);
  bool differ = false;
  for (size_t bytes = 1 << 10; bytes <= size_t{64} << 20; bytes += bytes / 3 + 1) {
    std::array<std::pair<Protocol, uint32_t>, 2> plans;
    for (const bool direct : {false, true}) {
      planner::Planner sender(settings, 0), receiver(settings, 1);
      Call sent = send(1, bytes), received = receive(0, bytes);
      sent.request.type = received.request.type = DataType::Uint8;
      sent.goes_direct = received.goes_direct = direct;
      // The receiver's group has another message, to which this is not to be compared.
      Call other = receive(0, 16);
      other.goes_direct = !direct;
      const std::vector<Task> of_sender{task_of(sent)};
      const std::vector<Task> of_receiver{task_of(received), task_of(other)};
      const std::vector<Batch> sends = make_batches(of_sender, sender).take();
      const std::vector<Batch> receives = make_batches(of_receiver, receiver).take();
      ASSERT_EQ(sends[0].protocol, receives[0].protocol) << bytes;
      const auto channels = sender.partition_of_message(bytes, sends[0].protocol, direct).channels;
      EXPECT_EQ(channels, receiver.partition_of_message(bytes, sends[0].protocol, direct).channels);
      plans[direct ? 1 : 0] = {sends[0].protocol, channels};
    }
    differ |= plans[0] != plans[1];
  }
  EXPECT_TRUE(differ) << "there is nothing to agree on";
}

/// Launches the batches of all ranks one after the other. A launch ends when those are running, or
/// over, that hold the other ends of its messages.
void expect_an_end(const std::vector<std::vector<Batch>>& of_ranks) {
  // By sender, receiver and number: in which launch each end is.
  std::map<std::tuple<int, int, int>, std::pair<size_t, size_t>> messages;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::map<std::pair<int, bool>, int> met;
    for (size_t b = 0; b < of_ranks[rank].size(); ++b) {
      EXPECT_LE(of_ranks[rank][b].tasks.size(), size_t{executor::kMaxWorks});
      for (const Task* task : of_ranks[rank][b].tasks) {
        const Call& call = task->call;
        const int number = met[{call.peer, call.is_send}]++;
        const auto self = static_cast<int>(rank);
        if (call.is_send) messages[{self, call.peer, number}].first = b;
        if (!call.is_send || call.peer == self)
          messages[{call.is_send ? self : call.peer, self, number}].second = b;
      }
    }
  }
  std::vector<size_t> running(of_ranks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      if (running[rank] == of_ranks[rank].size()) continue;
      bool is_over = true;
      for (const auto& [ends, launches] : messages) {
        const auto sender = static_cast<size_t>(std::get<0>(ends));
        const auto receiver = static_cast<size_t>(std::get<1>(ends));
        if (sender == rank && launches.first == running[rank])
          is_over = is_over && running[receiver] >= launches.second;
        if (receiver == rank && launches.second == running[rank])
          is_over = is_over && running[sender] >= launches.first;
      }
      if (is_over) ++running[rank];
      moved = moved || is_over;
    }
  }
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    EXPECT_EQ(running[rank], of_ranks[rank].size()) << "rank " << rank << " waits for ever";
}

// Joined launches have room for so many of each operation, whichever rank it is of and whatever
// algorithm is asked for.
TEST(Batches, KnowHowManyWorkersASmallCollectiveHas) {
  size_t checked = 0;
  const auto check = [&](const planner::Settings& settings, schedule::Collective collective) {
    for (int rank = 0; rank < settings.nranks; ++rank) {
      planner::Planner planner(settings, rank);
      for (size_t count = 1; count <= size_t{512} << 10; count *= 8) {
        const auto plan = planner.collective({.collective = collective, .count = count});
        if (!plan.is_ok()) return;  // not of so many ranks
        ++checked;
        EXPECT_LE(plan.value().program->workers.size(),
                  static_cast<size_t>(most_workers(settings.nranks)))
            << schedule::name_of(collective) << " of " << count << " by "
            << plan.value().choice.form->name << ", rank " << rank << " of " << settings.nranks;
      }
    }
  };
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {2, 3, 4, 5, 7, 8, 9, 16})
      for (size_t c = 0; c < schedule::kCollectives; ++c) {
        const auto collective = static_cast<schedule::Collective>(c);
        if (collective == schedule::Collective::PointToPoint) continue;
        planner::Settings settings = settings_for(machine, nranks);
        check(settings, collective);
        for (size_t i = 0; i < planner::forms_of(collective).size(); ++i) {
          settings.forms[c].reset().set(i);
          check(settings, collective);
        }
      }
  EXPECT_GT(checked, 20'000u);
}

TEST(Batches, MakeListsOfTheSmallestCollectives) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks;
  for (size_t i = 0; i < 800; ++i) tasks.push_back(task_of(all_reduce(1 + i % 4096)));
  const std::vector<Batch> batches = batches_of(settings, 0, tasks);
  ASSERT_EQ(batches.size(), 2u);
  size_t next = 0;
  for (const Batch& batch : batches) {
    EXPECT_TRUE(batch.is_list);
    EXPECT_EQ(batch.tasks.size(), 400u);
    for (const Task* task : batch.tasks) EXPECT_EQ(task, &tasks[next++]);
  }
}

TEST(Batches, MakeAListOfEachProgramAndOperation) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 4);
  std::vector<Task> tasks;
  for (int i = 0; i < 3; ++i) {
    tasks.push_back(task_of(all_reduce(10)));
    tasks.push_back(task_of(all_reduce(20, DataType::Bfloat16)));
    tasks.push_back(task_of(all_reduce(30, DataType::Float32, Operation::Max)));
    tasks.push_back(task_of(broadcast(40, 1)));
    tasks.push_back(task_of(broadcast(50, 2)));
  }
  tasks.push_back(task_of(broadcast(60, 3)));
  const std::vector<Batch> batches = batches_of(settings, 0, tasks);
  ASSERT_EQ(batches.size(), 6u);
  for (size_t b = 0; b < 5; ++b) {
    EXPECT_TRUE(batches[b].is_list);
    EXPECT_EQ(batches[b].tasks,
              (std::vector<const Task*>{&tasks[b], &tasks[b + 5], &tasks[b + 10]}));
  }
  EXPECT_FALSE(batches[5].is_list) << "one by itself";
}

TEST(Batches, MakeDirectListsOfWhatIsCaptured) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  std::vector<Task> tasks;
  for (size_t i = 0; i < 200; ++i) {
    tasks.push_back(task_of(all_reduce(1 + 20 * i)));
    tasks.push_back(task_of(broadcast(4096, 1)));
  }
  const std::vector<Batch> batches = batches_of(settings, 0, tasks, /*is_captured=*/true);
  ASSERT_EQ(batches.size(), 2u);
  for (size_t b = 0; b < 2; ++b) {
    EXPECT_TRUE(batches[b].is_list && batches[b].goes_direct);
    ASSERT_EQ(batches[b].tasks.size(), 200u);
    for (size_t i = 0; i < 200; ++i) EXPECT_EQ(batches[b].tasks[i], &tasks[2 * i + b]);
  }
}

TEST(Batches, MakeDirectListsWhereTheyPay) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  const auto goes_direct = [&](size_t calls, size_t kibibytes, bool is_captured) {
    const std::vector<Task> tasks(calls, task_of(all_reduce((kibibytes << 10) / kFloat)));
    return batches_of(settings, 0, tasks, is_captured)[0].goes_direct;
  };
  EXPECT_FALSE(goes_direct(8, 16, true)) << "a short list by LL takes half as long";
  EXPECT_TRUE(goes_direct(64, 16, true));
  EXPECT_FALSE(goes_direct(200, 1, true)) << "nor does a long one of short operations";
  EXPECT_TRUE(goes_direct(8, 64, true));
  EXPECT_TRUE(goes_direct(8, 256, false));
  const std::vector<Task> broadcasts(8, task_of(broadcast(16 << 10, 1)));
  EXPECT_FALSE(batches_of(settings, 0, broadcasts, true)[0].goes_direct) << "they go one way";
  EXPECT_FALSE(goes_direct(100, 1, true));
  const std::vector<Task> small(30, task_of(reduce_scatter(256)));
  EXPECT_FALSE(batches_of(settings, 0, small, true)[0].goes_direct);
  EXPECT_TRUE(batches_of(settings, 0, small, true)[0].is_list);
  const std::vector<Task> scatters(30, task_of(reduce_scatter(5'000)));
  EXPECT_TRUE(batches_of(settings, 0, scatters, true)[0].goes_direct) << "by LL it is in no list";
  EXPECT_TRUE(batches_of(settings, 0, scatters, false)[0].goes_direct)
      << "to look their buffers up takes less than the launches";
  EXPECT_FALSE(goes_direct(200, 1, false)) << "to look their buffers up takes longer";
  planner::Settings slots = settings;
  planner::set_reach(slots, false);
  const std::vector<Task> tasks(64, task_of(all_reduce(60'000)));
  EXPECT_FALSE(batches_of(slots, 0, tasks, true)[0].goes_direct);
}

// However long they are, as long as they are faster there: nothing waits between them.
TEST(Batches, MakeDirectListsOfLongOperations) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  constexpr size_t kMiB = (1 << 20) / kFloat;
  for (const bool is_captured : {false, true}) {
    std::vector<Task> tasks(8, task_of(all_reduce(4 * kMiB)));
    tasks.push_back(task_of(all_reduce(100)));         // goes with them
    tasks.push_back(task_of(all_reduce(256 * kMiB)));  // fills the links by itself
    const std::vector<Batch> batches = batches_of(settings, 0, tasks, is_captured);
    ASSERT_EQ(batches.size(), 2u);
    EXPECT_TRUE(batches[0].is_list && batches[0].goes_direct);
    EXPECT_EQ(batches[0].tasks.size(), 9u);
    EXPECT_EQ(batches[1].tasks, std::vector<const Task*>{&tasks[9]});
  }
  const std::vector<Task> one{task_of(all_reduce(4 * kMiB))};
  EXPECT_FALSE(batches_of(settings, 0, one, true)[0].is_list);
  planner::Settings slots = settings;
  planner::set_reach(slots, false);
  const std::vector<Task> tasks(8, task_of(all_reduce(4 * kMiB)));
  EXPECT_EQ(batches_of(slots, 0, tasks, true).size(), 8u);
}

TEST(Batches, MakeDirectListsOnVirtualGpusOfAnySize) {
  const planner::Settings settings = settings_for(gpu::Kind::Virtual, 4);
  for (const size_t count : {size_t{1}, size_t{30'000}}) {
    const std::vector<Task> tasks(3, task_of(all_reduce(count)));
    for (const bool is_captured : {false, true}) {
      const std::vector<Batch> batches = batches_of(settings, 0, tasks, is_captured);
      ASSERT_EQ(batches.size(), 1u);
      EXPECT_TRUE(batches[0].is_list && batches[0].goes_direct);
    }
  }
  const std::vector<Task> other_kinds{task_of(all_reduce(9)), task_of(broadcast(9, 1))};
  for (const Batch& batch : batches_of(settings, 0, other_kinds)) EXPECT_FALSE(batch.goes_direct);
}

// A launch of several operations is the interpreter's, by which LL takes longer than LL128.
TEST(Batches, ShareLaunchesByLinesWhereThereAreAny) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  const planner::Request request = all_reduce((64 << 10) / kFloat).request;
  planner::Planner planner(settings, 0);
  for (const int share : {1, 3, 12})
    EXPECT_EQ(planner.collective(request, share).value().protocol, Protocol::LL128);
  planner::Settings words = settings;
  words.protocols[static_cast<size_t>(request.collective)][size_t(Protocol::LL128)] = false;
  words.protocols[static_cast<size_t>(request.collective)][size_t(Protocol::Simple)] = false;
  planner::Planner by_words(words, 0);
  EXPECT_EQ(by_words.collective(request, 3).value().protocol, Protocol::LL);
}

// A collective that has few channels takes the protocol that is the fastest of so many.
TEST(Batches, ChooseForTheShareOfEachCollective) {
  const planner::Settings settings = settings_for(gpu::Kind::Cuda, 2);
  const size_t count = (size_t{64} << 10) / kFloat;
  planner::Planner planner(settings, 0);
  ASSERT_EQ(planner.collective(all_reduce(count).request).value().protocol, Protocol::LL);
  const std::vector<Task> tasks(7, task_of(all_reduce(count)));
  const std::vector<Batch> batches = batches_of(settings, 0, tasks);
  EXPECT_NE(planner.collective(tasks[0].call.request, 3).value().protocol, Protocol::LL);
  for (const Batch& batch : batches) {
    EXPECT_FALSE(batch.is_list);
    EXPECT_EQ(batch.most_channels, 3);
  }
}

// Whatever a group holds, all ranks launch the same, each call once.
TEST(Batches, OfCollectivesAreThoseOfAllRanks) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int nranks = 2 + static_cast<int>(random() % 8);
    const planner::Settings settings =
        settings_for(seed % 4 == 0 ? gpu::Kind::Virtual : gpu::Kind::Cuda, nranks);
    std::vector<Task> tasks;
    for (size_t i = 0, count = 1 + random() % 300; i < count; ++i) {
      const size_t elements = 1 + random() % (size_t{1} << (random() % 24));
      const int root = static_cast<int>(random() % static_cast<uint32_t>(nranks));
      tasks.push_back(
          task_of(random() % 2 == 0 ? all_reduce(elements) : broadcast(elements, root)));
    }
    const bool is_captured = seed % 3 == 0;
    const std::vector<Batch> expected = batches_of(settings, 0, tasks, is_captured);
    size_t calls = 0;
    for (const Batch& batch : expected) {
      calls += batch.tasks.size();
      EXPECT_LE(batch.tasks.size(), batch.goes_direct ? executor::kMostDirectListWorks
                                    : batch.is_list   ? executor::kMostListWorks
                                                      : size_t{executor::kMaxWorks});
    }
    EXPECT_EQ(calls, tasks.size());
    for (int rank = 1; rank < nranks; ++rank) {
      const std::vector<Batch> batches = batches_of(settings, rank, tasks, is_captured);
      ASSERT_EQ(batches.size(), expected.size());
      for (size_t b = 0; b < batches.size(); ++b) {
        EXPECT_EQ(batches[b].tasks, expected[b].tasks);
        EXPECT_EQ(batches[b].is_list, expected[b].is_list);
        EXPECT_EQ(batches[b].goes_direct, expected[b].goes_direct);
        EXPECT_EQ(batches[b].most_channels, expected[b].most_channels);
      }
    }
  }
}

TEST(Batches, OfAnyMessagesComeToAnEnd) {
  constexpr size_t kSizes[] = {0, 1, 2, 700, 9000, 60'000, 300'000, 5'000'000};
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int nranks = 2 + static_cast<int>(random() % 30);
    const planner::Settings settings =
        settings_for(seed % 2 == 0 ? gpu::Kind::Cuda : gpu::Kind::Virtual, nranks);
    std::vector<std::vector<Task>> tasks(static_cast<size_t>(nranks));
    for (size_t m = 0, count = random() % 120; m < count; ++m) {
      const auto sender = static_cast<int>(random() % static_cast<uint32_t>(nranks));
      // Mostly a few pairs, with many messages.
      const int receiver = random() % 3 == 0
                               ? static_cast<int>(random() % static_cast<uint32_t>(nranks))
                               : (sender + 1) % nranks;
      const size_t size = kSizes[random() % std::size(kSizes)];
      tasks[static_cast<size_t>(sender)].push_back(task_of(send(receiver, size)));
      tasks[static_cast<size_t>(receiver)].push_back(task_of(receive(sender, size)));
    }
    std::vector<std::vector<Batch>> of_ranks;
    for (int rank = 0; rank < nranks; ++rank)
      of_ranks.push_back(batches_of(settings, rank, tasks[static_cast<size_t>(rank)]));
    expect_an_end(of_ranks);
  }
}

}  // namespace
}  // namespace niccolite::operations
