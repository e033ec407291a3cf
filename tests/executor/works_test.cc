// Programs of several works: messages, and programs that were joined.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "algorithms/all_reduce.h"
#include "algorithms/point_to_point.h"
#include "executor/program.h"
#include "schedule/builder.h"

namespace niccolite::executor {
namespace {

using schedule::Builder;
using schedule::Collective;
using schedule::input;
using schedule::output;
using schedule::Schedule;
using schedule::WorkerBuilder;
using testing::HasSubstr;

Schedule messages_of(int nranks, const std::vector<algorithms::Envelope>& messages) {
  return algorithms::point_to_point(nranks, messages).take();
}

TEST(CompileMessages, MakesAWorkOfEachWithTheSendsFirst) {
  // Rank 1 sends to 2, itself and 0, and receives from itself, 2 and 0, in this order.
  const Schedule schedule = messages_of(3, {{1, 2}, {1, 1}, {2, 1}, {0, 1}, {1, 0}, {0, 2}});
  const Result<Program> result = compile(schedule, 1);
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  const Program& program = result.value();
  struct Want {
    int input_blocks, output_blocks;
  };
  const Want wanted[] = {{1, 0}, {1, 1}, {1, 0}, {0, 1}, {0, 1}};
  ASSERT_EQ(program.works.size(), std::size(wanted));
  for (size_t w = 0; w < program.works.size(); ++w) {
    SCOPED_TRACE(w);
    EXPECT_EQ(program.works[w].nblocks, 1);
    EXPECT_EQ(program.works[w].input_blocks, wanted[w].input_blocks);
    EXPECT_EQ(program.works[w].output_blocks, wanted[w].output_blocks);
    EXPECT_EQ(program.works[w].scratch_blocks, 0);
    EXPECT_EQ(program.works[w].nchannels, 1);
  }
  const std::map<int, std::string> ends{
      {0, "to 2"}, {2, "to 0"}, {3, "from 2"}, {4, "from 0"}};  // by work
  ASSERT_EQ(program.ports.size(), ends.size());
  for (const Port& port : program.ports)
    EXPECT_EQ(fmt::format("{} {}", port.is_send ? "to" : "from", port.peer), ends.at(port.work));
  ASSERT_EQ(program.workers.size(), program.works.size());
  for (const CompactWorker& worker : program.workers) {
    ASSERT_EQ(worker.count, 1);
    const CompactInstruction& instruction = program.instructions.at(worker.first);
    EXPECT_EQ(instruction.source_block, 0);
    EXPECT_EQ(instruction.target_block, 0);
    EXPECT_EQ(instruction.chunk_block, 0);
    EXPECT_EQ(instruction.source == OperandBuffer::Input, wanted[worker.work].input_blocks == 1);
    EXPECT_EQ(instruction.target == OperandBuffer::Output, wanted[worker.work].output_blocks == 1);
  }
}

TEST(CompileMessages, RefusesAWorkerOfTwoMessagesOrNone) {
  const auto refused = [](auto&& change) {
    Schedule schedule = messages_of(3, {{0, 1}, {0, 2}});
    std::vector<schedule::Worker>& workers = schedule.ranks[0][0].workers;
    change(workers);
    const Result<Program> program = compile(schedule, 0);
    return program.is_ok() ? std::string() : program.status().message();
  };
  EXPECT_THAT(refused([](auto& workers) {
                workers[0].instructions.push_back(workers[1].instructions[0]);
                workers.pop_back();
              }),
              HasSubstr("rank 0 channel 0 worker 0: a worker moves two messages"));
  EXPECT_THAT(refused([](auto& workers) { workers[1].instructions[0].source->block = 2; }),
              HasSubstr("input block 2 is no message of rank 0"));
  EXPECT_THAT(refused([](auto& workers) { workers[0].instructions.clear(); }),
              HasSubstr("a worker moves no message"));
}

TEST(CompileMessages, TakesAsManyAsThereIsRoomFor) {
  std::vector<algorithms::Envelope> messages;
  for (int peer = 1; peer <= kMaxWorks / 2; ++peer) {
    messages.push_back({0, peer});
    messages.push_back({peer, 0});
  }
  EXPECT_TRUE(compile(messages_of(40, messages), 0).is_ok());
  messages.push_back({0, 39});
  const Result<Program> program = compile(messages_of(40, messages), 0);
  ASSERT_FALSE(program.is_ok());
  EXPECT_EQ(program.status().code(), Code::InvalidUsage);
  EXPECT_THAT(program.status().message(),
              HasSubstr("rank 0: a rank's messages are 33 works; a program has room for 32"));
}

TEST(Join, PutsProgramsOneAfterTheOther) {
  const std::vector<std::vector<int>> rings{{0, 1, 2}, {2, 1, 0}};
  const Schedule schedules[] = {algorithms::all_reduce_ring(3, {.rings = rings}).take(),
                                messages_of(3, {{0, 1}, {1, 2}, {1, 1}}),
                                algorithms::all_reduce_two_shot(3).take()};
  std::vector<Program> parts;
  for (const Schedule& schedule : schedules) parts.push_back(compile(schedule, 1).take());
  const Result<Program> result = join({&parts[0], &parts[1], &parts[2]});
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  const Program& joined = result.value();
  EXPECT_EQ(joined.rank, 1);
  EXPECT_EQ(joined.nranks, 3);
  size_t work = 0, worker = 0, instruction = 0, port = 0;
  int channel = 0;
  for (const Program& part : parts) {
    SCOPED_TRACE(work);
    for (size_t w = 0; w < part.works.size(); ++w) {
      const WorkShape& shape = joined.works.at(work + w);
      EXPECT_EQ(shape.nblocks, part.works[w].nblocks);
      EXPECT_EQ(shape.first_channel, part.works[w].first_channel + channel);
      EXPECT_EQ(shape.nchannels, part.works[w].nchannels);
    }
    for (const CompactWorker& own : part.workers) {
      const CompactWorker& compact = joined.workers.at(worker++);
      EXPECT_EQ(compact.first, own.first + instruction);
      EXPECT_EQ(compact.count, own.count);
      EXPECT_EQ(compact.channel, own.channel + channel);
      EXPECT_EQ(compact.work, own.work + work);
      for (size_t i = 0; i < own.count; ++i) {
        const CompactInstruction& a = part.instructions.at(own.first + i);
        const CompactInstruction& b = joined.instructions.at(compact.first + i);
        EXPECT_EQ(a.flags, b.flags);
        ASSERT_EQ(a.receive_count, b.receive_count);
        ASSERT_EQ(a.send_count, b.send_count);
        for (size_t k = 0; k < a.receive_count; ++k)
          EXPECT_EQ(joined.indices.at(b.receive + k), part.indices.at(a.receive + k) + port);
        for (size_t k = 0; k < a.send_count; ++k)
          EXPECT_EQ(joined.indices.at(b.send + k), part.indices.at(a.send + k) + port);
      }
    }
    for (size_t p = 0; p < part.ports.size(); ++p) {
      const Port& end = joined.ports.at(port + p);
      EXPECT_EQ(end.peer, part.ports[p].peer);
      EXPECT_EQ(end.steps, part.ports[p].steps);
      EXPECT_EQ(end.channel, part.ports[p].channel + channel);
      EXPECT_EQ(end.work, part.ports[p].work + static_cast<int>(work));
    }
    work += part.works.size();
    instruction += part.instructions.size();
    port += part.ports.size();
    channel += part.nchannels;
  }
  EXPECT_EQ(joined.works.size(), work);
  EXPECT_EQ(joined.workers.size(), worker);
  EXPECT_EQ(joined.instructions.size(), instruction);
  EXPECT_EQ(joined.ports.size(), port);
  EXPECT_EQ(joined.nchannels, channel);
}

Schedule long_worker(int instructions) {
  Builder builder(
      {.collective = Collective::AllReduce, .algorithm = "sketch", .nranks = 3, .nblocks = 1});
  WorkerBuilder worker = builder.add_worker(0);
  for (int i = 0; i < instructions; ++i) worker.add({.source = input(0), .target = output(0)});
  return std::move(builder).take();
}

TEST(Join, RefusesOtherRanksAndTooMuch) {
  const Program here = compile(algorithms::all_reduce_ring(3).take(), 1).take();
  const Program there = compile(algorithms::all_reduce_ring(3).take(), 2).take();
  const Program wider = compile(algorithms::all_reduce_ring(4).take(), 1).take();
  const Program large = compile(long_worker(40000), 0).take();
  const std::pair<std::vector<const Program*>, const char*> cases[] = {
      {{}, "no programs to join"},
      {{&here, &there}, "a program of rank 2 of 3 cannot join one of rank 1 of 3"},
      {{&here, &wider}, "a program of rank 1 of 4 cannot join one of rank 1 of 3"},
      {std::vector<const Program*>(33, &here), "joined programs are 33 works"},
      {{&large, &large}, "the number of instructions of joined programs is 80000"},
  };
  for (const auto& [programs, message] : cases) {
    const Result<Program> joined = join(programs);
    ASSERT_FALSE(joined.is_ok()) << message;
    EXPECT_EQ(joined.status().code(), Code::InvalidUsage);
    EXPECT_THAT(joined.status().message(), HasSubstr(message));
  }
  EXPECT_TRUE(join(std::vector<const Program*>(32, &here)).is_ok());
}

}  // namespace
}  // namespace niccolite::executor
