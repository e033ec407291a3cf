// Calls that do not match: their data are never taken, and the host hears of them. And waits that
// take long.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ostream>
#include <thread>

#include "executor/host/control.h"
#include "schedule/builder.h"
#include "tests/executor/host/cluster.h"

namespace niccolite::executor {

void PrintTo(const Report& report, std::ostream* out) {
  *out << "kind " << static_cast<int>(report.kind) << " peer " << report.peer << " own tag "
       << report.own_tag << " peer's tag " << report.peer_tag << " repeats " << report.repeats;
}

}  // namespace niccolite::executor

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;
using gpu::virtual_::Task;
using namespace schedule;

constexpr uint16_t kTag = 0x1111;
constexpr uint16_t kOther = 0x2222;

Progress run(Task& task) {
  Progress progress = task.step();
  while (progress == Progress::Advanced) progress = task.step();
  return progress;
}

// Ranks 0 ... n - 2 send to the last, which reduces what they send.
Schedule funnel(int nranks) {
  Builder builder({.collective = Collective::Reduce,
                   .algorithm = "funnel",
                   .nranks = nranks,
                   .nblocks = 1,
                   .root = nranks - 1});
  WorkerBuilder root = builder.add_worker(nranks - 1);
  std::vector<int> peers;
  for (int rank = 0; rank < nranks - 1; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(0), .send_to = worker.to(nranks - 1)});
    peers.push_back(rank);
  }
  root.add({.receive_from = root.from(peers), .reduce = peers.size() > 1, .target = output(0)});
  return std::move(builder).take();
}

// Two ranks whose calls may differ.
class Mismatch : public testing::TestWithParam<Protocol> {
 protected:
  Mismatch() {
    start_anew();
    for (size_t i = 0; i < sizeof input_; ++i) input_[i] = static_cast<uint8_t>(i * 7 + 1);
  }
  void start_anew() {
    cluster_ = std::make_unique<Cluster>(funnel(2), GetParam(), kShape);
    cluster_->links_reach_users = false;
  }
  uint64_t slot_data() const { return data_bytes(GetParam(), kShape.slot_bytes); }

  std::unique_ptr<Task> task(size_t rank, uint64_t bytes, uint16_t tag) {
    const OperationBuffers buffers{.inputs = {input_, input_}, .outputs = {output_, output_}};
    auto launches =
        cluster_->launches({.count = bytes, .type = DataType::Uint8, .tag = tag}, buffers);
    return std::move(cluster_->tasks({launches[rank]})[0]);
  }
  std::unique_ptr<Task> sender(uint64_t bytes, uint16_t tag) { return task(0, bytes, tag); }
  std::unique_ptr<Task> receiver(uint64_t bytes, uint16_t tag) {
    std::memset(output_, 0xee, sizeof output_);
    return task(1, bytes, tag);
  }
  bool output_is_untouched() const {
    return std::all_of(output_, output_ + sizeof output_, [](uint8_t b) { return b == 0xee; });
  }
  bool has_received(uint64_t bytes) const { return std::memcmp(output_, input_, bytes) == 0; }
  Report heard() const { return decode_report(cluster_->control.report); }

  static constexpr FifoShape kShape{.channels = 1, .depth = 4, .slot_bytes = 128};
  static constexpr Report kNews{ReportKind::Mismatch, 0, kTag, kOther};
  std::unique_ptr<Cluster> cluster_;
  uint8_t input_[4096];
  uint8_t output_[4096];
};
INSTANTIATE_TEST_SUITE_P(Protocols, Mismatch, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_P(Mismatch, IsReportedAndItsDataAreNotTaken) {
  const uint64_t slot = slot_data();
  const struct {
    const char* what;
    uint64_t sent, expected;
  } cases[] = {
      {"another call of the same size", slot, slot},
      {"less", 5, 9},
      {"much less", 1, slot},
      {"more", 9, 5},
      {"less by rounds", slot, 4 * slot},
      {"more by rounds", 5 * slot, 4 * slot},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    start_anew();
    const auto from = sender(c.sent, kOther), to = receiver(c.expected, kTag);
    EXPECT_EQ(run(*to), Progress::WouldBlock);
    EXPECT_EQ(heard(), Report{});
    (void)run(*from);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(*to), Progress::WouldBlock);
    EXPECT_EQ(heard(), kNews);
    EXPECT_TRUE(output_is_untouched());
    cluster_->control.abort = 1;
    EXPECT_EQ(run(*to), Progress::Done);
  }
}

TEST_P(Mismatch, IsReportedOnce) {
  const auto from = sender(8, kOther), to = receiver(8, kTag);
  EXPECT_EQ(run(*from), Progress::Done);
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_EQ(heard(), kNews);
  cluster_->control.report = 0;  // the host has taken it
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_EQ(heard(), Report{});
}

TEST_P(Mismatch, IsFoundInTheMiddleOfAnOperation) {
  const uint64_t slot = slot_data();
  const auto first = sender(2 * slot, kTag), second = sender(slot, kOther);
  const auto to = receiver(8 * slot, kTag);
  EXPECT_EQ(run(*first), Progress::Done);
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_EQ(run(*second), Progress::Done);
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_EQ(heard(), kNews);
  EXPECT_EQ(output_[2 * slot], 0xee);
}

// Once known, data of another call stay so, though the sender goes on to a call that matches.
TEST_P(Mismatch, IsNotForgotten) {
  const uint64_t slot = slot_data();
  const auto first = sender(2 * slot, kOther), second = sender(2 * slot, kTag);
  const auto to = receiver(3 * slot, kTag);
  EXPECT_EQ(run(*first), Progress::Done);
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_EQ(run(*second), Progress::Done);
  EXPECT_EQ(run(*to), Progress::WouldBlock);
  EXPECT_TRUE(output_is_untouched());
}

TEST_P(Mismatch, IsNoSenderThatIsAheadByACall) {
  const uint64_t slot = slot_data();
  for (const uint64_t bytes : {uint64_t{1}, slot, 2 * slot}) {
    const auto first = sender(bytes, kTag), second = sender(bytes, kOther);
    EXPECT_EQ(run(*first), Progress::Done);
    (void)run(*second);
    for (const uint16_t tag : {kTag, kOther}) {
      const auto to = receiver(bytes, tag);
      EXPECT_EQ(run(*to), Progress::Done);
      EXPECT_TRUE(has_received(bytes));
      (void)run(*second);
    }
    EXPECT_EQ(heard(), Report{});
  }
}

// What a slot keeps from older calls has older steps.
TEST_P(Mismatch, IsNotWhatOldCallsHaveLeft) {
  const uint64_t slot = slot_data();
  for (uint16_t i = 0; i < 12; ++i) {
    const uint64_t bytes = i % 3 == 0 ? slot : 1 + i;
    const auto tag = static_cast<uint16_t>(kTag + i);
    const auto to = receiver(bytes, tag);
    EXPECT_EQ(run(*to), Progress::WouldBlock);
    EXPECT_EQ(run(*sender(bytes, tag)), Progress::Done);
    EXPECT_EQ(run(*to), Progress::Done);
    EXPECT_TRUE(has_received(bytes));
  }
  EXPECT_EQ(heard(), Report{});
}

// Tags use all 16 bits, 0 too, and no step.
TEST_P(Mismatch, IsSeenAtAnyStepAndForAnyTag) {
  const uint64_t wraps[] = {uint64_t{1} << 15, uint64_t{1} << 16, uint64_t{1} << 32,
                            uint64_t{1} << 48};
  constexpr std::pair<uint16_t, uint16_t> kTags[] = {{0, 1}, {0xffff, 0}, {0x8000, 0}, {1, 0x0100}};
  for (const uint64_t wrap : wraps) {
    for (const uint64_t start : {wrap - 2, wrap - 1, wrap}) {
      for (const auto& [own, others] : kTags) {
        SCOPED_TRACE(testing::Message() << start << " " << own << " " << others);
        start_anew();
        cluster_->start_at(start);
        const auto from = sender(8, others), to = receiver(8, own);
        EXPECT_EQ(run(*to), Progress::WouldBlock);
        EXPECT_EQ(heard(), Report{});
        EXPECT_EQ(run(*from), Progress::Done);
        EXPECT_EQ(run(*to), Progress::WouldBlock);
        EXPECT_EQ(heard(), (Report{ReportKind::Mismatch, 0, own, others}));
        EXPECT_TRUE(output_is_untouched());
      }
    }
  }
}

TEST(Report, OfAMismatchIsNotReplaced) {
  const Report waiting{ReportKind::Waiting, 3, kTag, 0};
  const Report mismatch{ReportKind::Mismatch, 5, kTag, kOther};
  const Report second{ReportKind::Mismatch, 6, kTag, kOther};
  ControlWords control{};
  const auto heard = [&control] { return decode_report(control.report); };
  EXPECT_TRUE(report(control, waiting));
  EXPECT_EQ(heard(), waiting);
  EXPECT_FALSE(report(control, waiting));
  EXPECT_TRUE(report(control, mismatch));
  EXPECT_EQ(heard(), mismatch);
  EXPECT_FALSE(report(control, waiting));
  EXPECT_FALSE(report(control, second));
  EXPECT_EQ(heard(), mismatch);
}

TEST(Report, KeepsAllItsBits) {
  const Report report{ReportKind::Mismatch, 0xabcdef, 0xffee, 0xddcc};
  EXPECT_EQ(decode_report(encode(report)), report);
}

// Steps all tasks until each cluster's word says something, or for very long.
void wait_for_reports(const std::vector<std::unique_ptr<Cluster>>& clusters,
                      const Cluster::Tasks& tasks) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto all_heard = [&clusters] {
    return std::all_of(clusters.begin(), clusters.end(),
                       [](const auto& cluster) { return cluster->control.report != 0; });
  };
  while (!all_heard() && std::chrono::steady_clock::now() < deadline) {
    for (const auto& task : tasks) EXPECT_NE(task->step(), Progress::Done);
    std::this_thread::yield();
  }
}

TEST(LongWait, IsReportedAgainAndAgainByReceiversAndSenders) {
  std::vector<std::unique_ptr<Cluster>> clusters;
  Cluster::Tasks tasks;
  uint8_t data[2048] = {};
  const OperationBuffers buffers{.inputs = {data, data}, .outputs = {data, data}};
  for (const Protocol protocol : kAllProtocols) {
    for (const size_t rank : {0u, 1u}) {
      clusters.push_back(std::make_unique<Cluster>(
          funnel(2), protocol, FifoShape{.channels = 1, .depth = 4, .slot_bytes = 128}));
      clusters.back()->links_reach_users = false;
      const OperationArguments call{.count = 2048, .type = DataType::Uint8, .tag = kTag};
      tasks.push_back(
          std::move(clusters.back()->tasks({clusters.back()->launches(call, buffers)[rank]})[0]));
    }
  }
  for (const uint16_t repeats : {uint16_t{0}, uint16_t{1}}) {
    wait_for_reports(clusters, tasks);
    for (size_t i = 0; i < clusters.size(); ++i) {
      const bool is_send = i % 2 == 0;
      const Report expected{
          .kind = is_send ? ReportKind::WaitingForCredit : ReportKind::WaitingForData,
          .peer = is_send ? 1u : 0u,
          .own_tag = kTag,
          .repeats = repeats};
      EXPECT_EQ(decode_report(clusters[i]->control.report), expected) << i;
      clusters[i]->control.report = 0;  // the host has taken it
    }
  }
}

// The worker waits for rank 0, which has not called; what rank 1 has sent says more.
TEST(LongWait, FindsAMismatchBehindARankThatHasNotCalled) {
  std::vector<std::unique_ptr<Cluster>> clusters;
  Cluster::Tasks tasks;
  uint8_t data[16] = {};
  const OperationBuffers buffers{.inputs = {data, data, data}, .outputs = {data, data, data}};
  for (const Protocol protocol : kAllProtocols) {
    clusters.push_back(std::make_unique<Cluster>(
        funnel(3), protocol, FifoShape{.channels = 1, .depth = 4, .slot_bytes = 128}));
    clusters.back()->links_reach_users = false;
    const auto make = [&](size_t rank, uint16_t tag) {
      const OperationArguments call{.count = 16, .type = DataType::Uint8, .tag = tag};
      return std::move(clusters.back()->tasks({clusters.back()->launches(call, buffers)[rank]})[0]);
    };
    EXPECT_EQ(run(*make(1, kOther)), Progress::Done);
    tasks.push_back(make(2, kTag));
  }
  wait_for_reports(clusters, tasks);
  for (const auto& cluster : clusters) {
    EXPECT_EQ(decode_report(cluster->control.report),
              (Report{ReportKind::Mismatch, 1, kTag, kOther}));
  }
}

}  // namespace
}  // namespace niccolite::executor::host
