#include "operations/message_agreement.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "tests/calls/calls.h"
#include "tests/operations/post.h"

namespace niccolite::operations {

using namespace calls;
namespace {

using Kind = MessageAgreement::Kind;

Task task_of(const Call& call) {
  Task task;
  task.call = call;
  return task;
}

/// Ranks in processes of their own.
class World : public Post<MessageAgreement> {
 public:
  explicit World(int nranks)
      : Post(nranks, [nranks](int rank, const Abort& abort, auto tell) {
          const std::vector agreed(static_cast<size_t>(nranks), Kind::Agreed);
          const MessageAgreement::Kinds kinds{.sent = agreed, .received = agreed};
          return std::make_unique<MessageAgreement>(rank, kinds, abort, tell);
        }) {}

  /// A group of `messages` to `peer`: which of them go direct.
  std::vector<bool> send_group(int of, int peer, size_t messages) {
    return run(of, std::vector<Task>(messages, task_of(send(peer, 1000))));
  }
  /// The same from `peer`, each of whose buffers is reached, or not.
  std::vector<bool> receive_group(int of, int peer, size_t messages, bool is_reached) {
    std::vector<bool> direct =
        run(of, std::vector<Task>(messages, task_of(receive(peer, 1000))), /*launches=*/false);
    for (size_t i = 0; i < messages; ++i) rank(of).note_use(peer, use_if(is_reached));
    rank(of).launched();
    return direct;
  }
  /// One message from rank 0 to rank 1, as both ends know it.
  bool pass_one(bool is_reached) {
    const bool sent = send_group(0, 1, 1)[0];
    EXPECT_EQ(receive_group(1, 0, 1, is_reached)[0], sent);
    return sent;
  }
  /// Messages until one goes direct, or does not; a great many if that never is so.
  int count_until(bool goes_direct, bool is_reached) {
    for (int count = 1; count < 10'000; ++count)
      if (pass_one(is_reached) == goes_direct) return count;
    return 10'000;
  }

 private:
  std::vector<bool> run(int of, std::vector<Task> tasks, bool launches = true) {
    EXPECT_TRUE(rank(of).begin(tasks).is_ok());
    if (launches) rank(of).launched();
    std::vector<bool> direct;
    for (const Task& task : tasks) direct.push_back(task.call.goes_direct);
    return direct;
  }
};

constexpr int kSoon = 100;

TEST(MessageAgreement, LetsMessagesGoDirectWhenTheReceiversBuffersAreReached) {
  World world(2);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(world.pass_one(true));
  world.deliver_all();
  EXPECT_LE(world.count_until(true, true), kSoon);
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(world.pass_one(true));
}

TEST(MessageAgreement, KnowsEachDirectionOfEachPairByItself) {
  World world(3);
  for (int i = 0; i < 200; ++i) {
    world.pass_one(true);
    EXPECT_FALSE(world.send_group(1, 0, 1)[0]);
    EXPECT_FALSE(world.receive_group(0, 1, 1, false)[0]);
    EXPECT_FALSE(world.send_group(0, 2, 1)[0]);
    EXPECT_FALSE(world.receive_group(2, 0, 1, false)[0]);
    world.deliver_all();
  }
  EXPECT_TRUE(world.pass_one(true));
}

TEST(MessageAgreement, GoesBackToSlotsWhenBuffersAreNotReachedAnyMore) {
  World world(2);
  for (int i = 0; i < 10; ++i) world.pass_one(true);
  world.deliver_all();
  world.count_until(true, true);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(world.pass_one(false));
  world.deliver_all();
  EXPECT_LE(world.count_until(false, false), kSoon);
}

TEST(MessageAgreement, CountsNoMessageTwiceThatWasNotLaunched) {
  World world(2);
  for (int i = 0; i < 10; ++i) world.pass_one(true);
  world.deliver_all();
  for (int i = 0; i < 500; ++i) {
    std::vector<Task> tasks(3, task_of(receive(0, 1000)));
    ASSERT_TRUE(world.rank(1).begin(tasks).is_ok());
  }
  EXPECT_LE(world.count_until(true, true), kSoon);  // at both ends alike
}

TEST(MessageAgreement, ComesLaterToASenderThatIsFarAhead) {
  World world(2);
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(world.send_group(0, 1, 1)[0]);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(world.receive_group(1, 0, 1, true)[0]);
  world.deliver_all();
  EXPECT_TRUE(world.send_group(0, 1, 1)[0]);
  for (int i = 10; i < 1'000; ++i) EXPECT_FALSE(world.receive_group(1, 0, 1, true)[0]) << i;
  EXPECT_TRUE(world.receive_group(1, 0, 1, true)[0]);
}

// The ends group their messages as they like: a change may come in the middle of a group.
TEST(MessageAgreement, ChangesInTheMiddleOfAGroup) {
  World world(2);
  std::vector<bool> sent, received;
  const auto append = [](std::vector<bool>& to, const std::vector<bool>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (int i = 0; i < 9; ++i) append(received, world.receive_group(1, 0, 1, true));
  world.deliver_all();
  while (sent.size() < 210) append(sent, world.send_group(0, 1, 21));
  while (received.size() < 210) append(received, world.receive_group(1, 0, 1, true));
  EXPECT_EQ(sent, received);
  EXPECT_TRUE(sent.back());
  size_t first = 0;
  while (!sent[first]) ++first;
  EXPECT_NE(first % 21, 0u) << "this test is of other numbers";
}

TEST(MessageAgreement, HoldsAReceiverThatComesToAProposalBeforeItsAnswer) {
  World world(2);
  for (int i = 0; i < 72; ++i) world.receive_group(1, 0, 1, true);  // proposed after 8
  std::atomic<bool> has_begun = false;
  std::thread ahead([&] {
    EXPECT_TRUE(world.receive_group(1, 0, 1, true)[0]);
    has_begun = true;
  });
  for (int i = 0; i < 72; ++i) EXPECT_FALSE(world.send_group(0, 1, 1)[0]);
  EXPECT_FALSE(has_begun);
  world.deliver_all();
  ahead.join();
  EXPECT_TRUE(world.send_group(0, 1, 1)[0]);
}

TEST(MessageAgreement, AnAbortEndsTheWaitForAnAnswer) {
  World world(2);
  for (int i = 0; i < 72; ++i) world.receive_group(1, 0, 1, true);
  std::thread waits([&] {
    std::vector<Task> tasks{task_of(receive(0, 1000))};
    const Status begun = world.rank(1).begin(tasks);
    EXPECT_NE(begun.message().find("enough"), std::string::npos);
  });
  world.abort().raise(Status::internal("enough"));
  waits.join();
}

TEST(MessageAgreement, SaysNothingOfPairsThatHaveOneWay) {
  Abort abort;
  int told = 0;
  MessageAgreement agreement(0,
                             {.sent = {Kind::Direct, Kind::Direct, Kind::Slots},
                              .received = {Kind::Direct, Kind::Slots, Kind::Direct}},
                             abort, [&](int, std::span<const std::byte>) { ++told; });
  std::vector<Task> tasks{task_of(send(0, 1)), task_of(send(1, 1)),    task_of(receive(1, 1)),
                          task_of(send(2, 1)), task_of(receive(2, 1)), task_of(all_reduce(1))};
  ASSERT_TRUE(agreement.begin(tasks).is_ok());
  std::vector<bool> direct;
  for (const Task& task : tasks) direct.push_back(task.call.goes_direct);
  EXPECT_EQ(direct, std::vector<bool>({true, true, false, false, true, false}));
  EXPECT_FALSE(agreement.notes_use_of(1));
  EXPECT_EQ(told, 0);
}

Bytes letter(bool is_answer, uint64_t proposal, uint64_t from) {
  Writer writer;
  writer.u8(is_answer ? 1 : 0);
  writer.u8(1);
  writer.u64(proposal);
  writer.u64(from);
  return std::move(writer).take();
}

TEST(MessageAgreement, RefusesWhatAPeerMustNotSay) {
  World world(2);
  EXPECT_FALSE(world.rank(0).note(1, {}).is_ok());
  EXPECT_FALSE(world.rank(0).note(1, Bytes(18, std::byte{9})).is_ok());
  EXPECT_FALSE(world.rank(0).note(0, letter(false, 1, 64)).is_ok()) << "of itself";
  EXPECT_FALSE(world.rank(0).note(2, letter(false, 1, 64)).is_ok()) << "no such rank";
  EXPECT_FALSE(world.rank(0).note(1, letter(true, 1, 64)).is_ok()) << "no proposal";
  EXPECT_FALSE(world.rank(0).note(1, letter(false, 2, 64)).is_ok())
      << "the second before the first";
  EXPECT_TRUE(world.rank(0).note(1, letter(false, 1, 64)).is_ok());
  EXPECT_FALSE(world.rank(0).note(1, letter(false, 2, 3)).is_ok()) << "before the first";
  for (int i = 0; i < 8; ++i) world.receive_group(1, 0, 1, true);
  EXPECT_FALSE(world.rank(1).note(0, letter(true, 1, 3)).is_ok()) << "before what is proposed";
  EXPECT_FALSE(world.rank(1).note(0, letter(true, 7, 1000)).is_ok()) << "another proposal";
}

// Ranks that run ahead of each other, group as they like, and whose buffers come and go, while
// letters wait: whatever happens, both ends of every message have one plan for it.
TEST(MessageAgreement, OfManyThreadsIsOneForBothEndsOfEveryMessage) {
  constexpr int kRanks = 3;
  constexpr uint64_t kMessages = 40'000;  // of each pair and direction
  constexpr uint64_t kMostAhead = 300;    // of the other end, as streams allow
  World world(kRanks);
  std::atomic<int> running{kRanks};
  std::array<std::array<std::atomic<uint64_t>, kRanks>, 2 * kRanks> progress{};
  // By rank, and by peer and direction: messages whose plan is another than the one's before.
  std::vector<std::map<std::pair<int, bool>, std::vector<std::pair<uint64_t, bool>>>> plans(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937 luck(static_cast<uint32_t>(100 + rank));
      std::map<std::pair<int, bool>, uint64_t> done;
      auto& own = plans[static_cast<size_t>(rank)];
      const auto is_over = [&] {
        for (int peer = 0; peer < kRanks; ++peer)
          for (const bool is_send : {false, true})
            if (peer != rank && done[{peer, is_send}] < kMessages) return false;
        return true;
      };
      while (!is_over()) {
        std::vector<Task> tasks;
        std::map<std::pair<int, bool>, uint64_t> more;
        for (uint64_t i = 1 + luck() % 9; i > 0; --i) {
          const int peer = (rank + 1 + static_cast<int>(luck() % (kRanks - 1))) % kRanks;
          const bool is_send = luck() % 2 == 0;
          const std::pair key(peer, is_send);
          const auto& other = progress[static_cast<size_t>(2 * peer + (is_send ? 0 : 1))]
                                      [static_cast<size_t>(rank)];
          const uint64_t number = done[key] + more[key];
          if (number >= kMessages || number > other + kMostAhead) continue;
          ++more[key];
          tasks.push_back(task_of(message(peer, 1000, is_send)));
        }
        if (tasks.empty()) std::this_thread::yield();
        ASSERT_TRUE(world.rank(rank).begin(tasks).is_ok());
        for (const Task& task : tasks) {
          const std::pair key(task.call.peer, task.call.is_send);
          auto& changes = own[key];
          const uint64_t number = done[key]++;
          const bool before = !changes.empty() && changes.back().second;
          if (task.call.goes_direct != before) changes.emplace_back(number, !before);
          const bool is_bad_time = number / 2'000 % 3 == 2;
          if (!task.call.is_send)
            world.rank(rank).note_use(task.call.peer, use_if(!is_bad_time || luck() % 4 != 0));
        }
        world.rank(rank).launched();
        for (const auto& [key, count] : more)
          progress[static_cast<size_t>(2 * rank + (key.second ? 1 : 0))]
                  [static_cast<size_t>(key.first)] = done[key];
        if (luck() % 4 == 0) world.deliver_one(luck);  // also where the post gets no core
      }
      --running;
    });
  threads.emplace_back([&] {
    std::mt19937 random(3);
    while (running > 0)
      if (!world.deliver_one(random)) std::this_thread::yield();
  });
  for (std::thread& thread : threads) thread.join();
  for (int sender = 0; sender < kRanks; ++sender)
    for (int receiver = 0; receiver < kRanks; ++receiver) {
      if (sender == receiver) continue;
      const auto& sent = plans[static_cast<size_t>(sender)][{receiver, true}];
      const auto& received = plans[static_cast<size_t>(receiver)][{sender, false}];
      EXPECT_EQ(sent, received) << "from " << sender << " to " << receiver;
      EXPECT_GT(sent.size(), 1u) << "nothing was ever agreed upon";
    }
}

}  // namespace
}  // namespace niccolite::operations
