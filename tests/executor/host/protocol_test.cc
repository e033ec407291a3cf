// What crosses a connection and when, seen from one end: credit, arrival, empty chunks, flags,
// abort.
#include <gtest/gtest.h>

#include <cstring>

#include "executor/protocol/ll.h"
#include "executor/protocol/ll128.h"
#include "schedule/builder.h"
#include "tests/executor/host/cluster.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;
using gpu::virtual_::Task;
using namespace schedule;

constexpr uint64_t kChunk = 64;  // bytes
constexpr uint16_t kTag = 0x3c5a;

// Rank 0 sends its input, of one block or more, to rank 1's output.
Schedule push_schedule(int nblocks = 1) {
  Builder builder(
      {.collective = Collective::AllReduce, .algorithm = "push", .nranks = 2, .nblocks = nblocks});
  WorkerBuilder sender = builder.add_worker(0);
  WorkerBuilder receiver = builder.add_worker(1);
  for (int block = 0; block < nblocks; ++block) {
    sender.add({.source = input(block), .send_to = sender.to(1)});
    receiver.add({.receive_from = receiver.from(0), .target = output(block)});
  }
  return std::move(builder).take();
}

// Two ranks, one connection, slots of kChunk bytes of data.
class Push : public testing::TestWithParam<Protocol> {
 protected:
  Push() : Push(1) {}
  explicit Push(int nblocks, uint32_t slot_bytes = 128)
      : cluster_(push_schedule(nblocks), GetParam(),
                 {.channels = 1, .depth = 4, .slot_bytes = slot_bytes}) {
    cluster_.links_reach_users = false;
  }

  uint64_t slot_data() const { return cluster_.elements_per_slot(DataType::Uint8); }
  ControlBlock& sender() { return cluster_.connections()[0]->sender(0); }
  ControlBlock& receiver() { return cluster_.connections()[0]->receiver(0); }
  uint64_t* words(uint64_t step) {
    std::byte* slots = cluster_.connections()[0]->slots.data();
    return reinterpret_cast<uint64_t*>(slots +
                                       cluster_.connections()[0]->shape.slot_offset(0, step));
  }

  // Starts an operation of `bytes` bytes.
  void start(uint64_t bytes) {
    input_.resize(bytes);
    for (uint64_t i = 0; i < bytes; ++i) input_[i] = static_cast<uint8_t>(i * 7 + 1);
    output_.assign(bytes, 0xee);
    const OperationBuffers buffers{.inputs = {input_.data(), input_.data()},
                                   .outputs = {output_.data(), output_.data()}};
    auto tasks = cluster_.tasks(
        cluster_.launches({.count = bytes, .type = DataType::Uint8, .tag = kTag}, buffers));
    send_ = std::move(tasks[0]);
    receive_ = std::move(tasks[1]);
  }
  static Progress run(Task& task) {
    Progress progress = task.step();
    while (progress == Progress::Advanced) progress = task.step();
    return progress;
  }

  Cluster cluster_;
  std::vector<uint8_t> input_;
  std::vector<uint8_t> output_;
  std::unique_ptr<Task> send_;
  std::unique_ptr<Task> receive_;
};

INSTANTIATE_TEST_SUITE_P(Protocols, Push, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_P(Push, SenderStopsWhenAllSlotsAreFull) {
  start(10 * slot_data());
  EXPECT_EQ(run(*send_), Progress::WouldBlock);
  if (GetParam() == Protocol::Simple) {
    EXPECT_EQ(receiver().remote, call_tag::tail(4, kTag));
  }
  EXPECT_EQ(run(*receive_), Progress::WouldBlock);
  EXPECT_EQ(std::memcmp(output_.data(), input_.data(), 4 * slot_data()), 0);
  EXPECT_EQ(output_[4 * slot_data()], 0xee);
  EXPECT_EQ(sender().remote, 4u);
  EXPECT_EQ(run(*send_), Progress::WouldBlock);
  EXPECT_EQ(run(*receive_), Progress::WouldBlock);
  EXPECT_EQ(run(*send_), Progress::Done);
  EXPECT_EQ(run(*receive_), Progress::Done);
  EXPECT_EQ(output_, input_);
}

TEST_P(Push, ReceiverGivesOnlyTheCreditThatIsNeeded) {
  start(10 * slot_data());
  Progress receive = Progress::Advanced;
  for (Progress send = Progress::Advanced; receive != Progress::Done;) {
    if (send != Progress::Done) send = send_->step();
    receive = receive_->step();
    EXPECT_LE(sender().remote, 6u);
  }
  EXPECT_EQ(sender().remote, 6u);  // all but the last 4 of 10
  EXPECT_EQ(sender().step, 10u);
  EXPECT_EQ(receiver().step, 10u);

  // The next operation gives the rest before it waits for anything.
  start(slot_data());
  EXPECT_EQ(sender().remote, 6u) << "a task must not touch connections before its first step";
  EXPECT_EQ(run(*receive_), Progress::WouldBlock);
  EXPECT_EQ(sender().remote, 10u);
}

TEST_P(Push, SenderOfTheNextOperationWaitsForTheCreditOfTheLast) {
  start(4 * slot_data());
  EXPECT_EQ(run(*send_), Progress::Done);
  EXPECT_EQ(run(*receive_), Progress::Done);
  EXPECT_EQ(sender().remote, 0u);
  start(slot_data());
  EXPECT_EQ(run(*send_), Progress::WouldBlock);
  EXPECT_EQ(run(*receive_), Progress::WouldBlock);
  EXPECT_EQ(run(*send_), Progress::Done);
  EXPECT_EQ(run(*receive_), Progress::Done);
  EXPECT_EQ(output_, input_);
}

TEST_P(Push, TasksWaitWhenToldToLeaveAndEndWhenToldToWithoutTouchingMemory) {
  start(10 * slot_data());
  EXPECT_EQ(run(*send_), Progress::WouldBlock);
  const std::vector<uint8_t> output = output_;
  const ControlBlock before[] = {sender(), receiver()};
  cluster_.control.abort = static_cast<uint32_t>(Command::Leave);
  EXPECT_EQ(receive_->step(), Progress::WouldBlock);
  EXPECT_EQ(send_->step(), Progress::WouldBlock);
  cluster_.control.abort = static_cast<uint32_t>(Command::End);
  EXPECT_EQ(receive_->step(), Progress::Done);
  EXPECT_EQ(send_->step(), Progress::Done);
  EXPECT_EQ(output_, output);
  EXPECT_EQ(sender().step, before[0].step);
  EXPECT_EQ(sender().remote, before[0].remote);
  EXPECT_EQ(receiver().step, before[1].step);
  EXPECT_EQ(receiver().remote, before[1].remote);
}

TEST_P(Push, TasksCanBeDroppedBeforeTheirEnd) {
  start(10 * slot_data());
  EXPECT_EQ(run(*send_), Progress::WouldBlock);
  send_.reset();
  receive_.reset();
}

// Two blocks of which the second is empty: its slots are counted all the same.
class PushTwo : public Push {
 protected:
  PushTwo() : Push(2) {}
};
INSTANTIATE_TEST_SUITE_P(Protocols, PushTwo, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_P(PushTwo, AnEmptyChunkIsAStep) {
  start(7);
  EXPECT_EQ(run(*send_), Progress::Done);
  EXPECT_EQ(run(*receive_), Progress::Done);
  EXPECT_EQ(output_, input_);
  EXPECT_EQ(sender().step, 2u);
  EXPECT_EQ(receiver().step, 2u);
  if (GetParam() == Protocol::Simple) {
    EXPECT_EQ(receiver().remote, call_tag::tail(2, kTag));
  } else {
    EXPECT_EQ(words(1)[0], 0u) << "nothing is stored for an empty chunk";
  }
}

class PushLl : public Push {};
INSTANTIATE_TEST_SUITE_P(Protocols, PushLl, testing::Values(Protocol::LL),
                         [](const auto& c) { return std::string(name_of(c.param)); });

// Words may arrive in any order; the test plays the sender.
TEST_P(PushLl, ReceiverWaitsForEveryWordInAnyOrder) {
  const uint64_t count = 5 * 4 + 3;
  for (uint64_t missing = 0; missing < 6; ++missing) {
    start(count);
    const uint64_t step = receiver().step;
    const auto put = [&](uint64_t word, uint32_t flag) {
      uint32_t data = 0;
      std::memcpy(&data, input_.data() + word * 4, word < 5 ? 4 : 3);
      words(step)[word] = ll::pack(data, flag);
    };
    for (uint64_t word = 0; word < 6; ++word) {
      if (word != missing) put(word, ll::flag_of(step, kTag));
    }
    EXPECT_EQ(run(*receive_), Progress::WouldBlock) << missing;
    EXPECT_EQ(output_, std::vector<uint8_t>(count, 0xee))
        << "what is not complete is not delivered";
    put(missing, ll::flag_of(step, kTag) + 1);  // some other step's
    EXPECT_EQ(run(*receive_), Progress::WouldBlock) << missing;
    put(missing, ll::flag_of(step, kTag));
    EXPECT_EQ(run(*receive_), Progress::Done) << missing;
    EXPECT_EQ(output_, input_);
  }
}

TEST_P(PushLl, NoWordKeepsAFlagOlderThanHalfARoundOfFlags) {
  const uint64_t wrap = uint64_t{1} << 15;
  cluster_.start_at(wrap - 6);
  for (int i = 0; i < 8; ++i) {
    start(1 + static_cast<uint64_t>(i) % 3);
    (void)run(*receive_);
    EXPECT_EQ(run(*send_), Progress::Done);
    EXPECT_EQ(run(*receive_), Progress::Done);
    EXPECT_EQ(output_, input_);
  }
  for (uint64_t slot = 0; slot < 4; ++slot) {
    for (uint64_t word = 0; word < 128 / ll::kWordBytes; ++word) {
      EXPECT_GE(ll::flag_in(words(slot)[word]), ll::flag_of(wrap - 4, kTag)) << slot << " " << word;
    }
  }
}

class PushTwoLl : public PushTwo {};
INSTANTIATE_TEST_SUITE_P(Protocols, PushTwoLl, testing::Values(Protocol::LL),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_P(PushTwoLl, EmptyChunksCleanSlotsToo) {
  const uint64_t wrap = uint64_t{1} << 15;
  cluster_.start_at(wrap - 4);
  for (int i = 0; i < 2; ++i) {
    start(3);
    (void)run(*receive_);
    EXPECT_EQ(run(*send_), Progress::Done);
    EXPECT_EQ(run(*receive_), Progress::Done);
  }
  for (uint64_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(ll::flag_in(words(slot)[15]), ll::flag_of(wrap - 4 + slot, kTag)) << slot;
  }
}

// Slots of four lines.
class PushLl128 : public Push {
 protected:
  PushLl128() : Push(1, 512) {}
};
INSTANTIATE_TEST_SUITE_P(Protocols, PushLl128, testing::Values(Protocol::LL128),
                         [](const auto& c) { return std::string(name_of(c.param)); });

// Lines may arrive in any order; the test plays the sender.
TEST_P(PushLl128, ReceiverWaitsForEveryLineInAnyOrder) {
  const uint64_t count = 3 * ll128::kDataBytes + 7;
  for (uint64_t missing = 0; missing < 4; ++missing) {
    start(count);
    const uint64_t step = receiver().step;
    const uint64_t flag = ll128::flag_of(step, kTag);
    const auto put = [&](uint64_t line, uint64_t line_flag) {
      uint64_t* words_of_line = words(step) + line * ll128::kLineBytes / 8;
      std::memcpy(words_of_line, input_.data() + line * ll128::kDataBytes,
                  line < 3 ? ll128::kDataBytes : 7);
      words_of_line[ll128::kFlagOffset / 8] = line_flag;
    };
    for (uint64_t line = 0; line < 4; ++line) {
      if (line != missing) put(line, flag);
    }
    for (const uint64_t other_step : {flag - 1, flag + 1}) {
      put(missing, other_step);
      EXPECT_EQ(run(*receive_), Progress::WouldBlock) << missing;
    }
    EXPECT_EQ(output_, std::vector<uint8_t>(count, 0xee))
        << "what is not complete is not delivered";
    EXPECT_EQ(cluster_.control.report, 0u) << "another step's flag is no mismatch";
    put(missing, flag);
    EXPECT_EQ(run(*receive_), Progress::Done) << missing;
    EXPECT_EQ(output_, input_);
  }
}

TEST(MakeKernel, RefusesWhatCannotRun) {
  Cluster cluster(push_schedule(), Protocol::Simple,
                  {.channels = 1, .depth = 2, .slot_bytes = 128});
  uint8_t data[kChunk] = {};
  const OperationBuffers buffers{.inputs = {data, data}, .outputs = {data, data}};
  const Launch good = cluster.launches({.count = kChunk, .type = DataType::Uint8}, buffers)[0];
  ASSERT_TRUE(make_kernel(good).is_ok());
  const struct {
    const char* what;
    void (*spoil)(Launch&);
  } cases[] = {
      {"no program", [](Launch& l) { l.program = nullptr; }},
      {"no control words", [](Launch& l) { l.control = nullptr; }},
      {"depth", [](Launch& l) { l.shape.depth = 3; }},
      {"chunk", [](Launch& l) { l.works[0].partition.chunk = 129; }},
      {"channels", [](Launch& l) { l.works[0].partition.channels = 2; }},
      {"first channel", [](Launch& l) { l.works[0].first_channel = 1; }},
      {"works", [](Launch& l) { l.works.clear(); }},
      {"ports", [](Launch& l) { l.ports.clear(); }},
      {"port memory", [](Launch& l) { l.ports[0].slots = nullptr; }},
      {"input", [](Launch& l) { l.works[0].buffers.input = nullptr; }},
  };
  for (const auto& c : cases) {
    Launch bad = good;
    c.spoil(bad);
    const auto kernel = make_kernel(bad);
    ASSERT_FALSE(kernel.is_ok()) << c.what;
    EXPECT_EQ(kernel.status().code(), Code::InternalError);
    EXPECT_FALSE(kernel.status().message().empty());
  }
}

}  // namespace
}  // namespace niccolite::executor::host
