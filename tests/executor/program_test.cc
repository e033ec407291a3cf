#include "executor/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "algorithms/all_reduce.h"
#include "planner/form.h"
#include "schedule/builder.h"

namespace niccolite::executor {
namespace {

using schedule::BlockReference;
using schedule::Builder;
using schedule::Collective;
using schedule::Connections;
using schedule::input;
using schedule::Instruction;
using schedule::output;
using schedule::Schedule;
using schedule::scratch;
using schedule::WorkerBuilder;
using testing::HasSubstr;

Builder builder_of(int nranks, int nblocks = 1) {
  return Builder({.collective = Collective::AllReduce,
                  .algorithm = "sketch",
                  .nranks = nranks,
                  .nblocks = nblocks,
                  .scratch_blocks = 2});
}

/// A connection by what a program keeps of it.
std::string name_of(int peer, int tag, int channel, bool is_send, const lowering::Route& route) {
  return fmt::format("{} {} tag {} channel {} {}{}", is_send ? "to" : "from", peer, tag, channel,
                     name_of(route.way), route.is_final ? " final" : "");
}

std::vector<std::string> ends_in(const Program& program, uint16_t first, uint8_t count) {
  std::vector<std::string> ends;
  for (size_t i = first; i < size_t{first} + count; ++i) {
    const Port& port = program.ports.at(program.indices.at(i));
    ends.push_back(name_of(port.peer, port.tag, port.channel, port.is_send, port.route));
  }
  return ends;
}

std::vector<std::string> ends_in(const Schedule& whole, const Connections& list, bool is_send) {
  std::vector<std::string> ends;
  const lowering::Routes routes = lowering::routes_of(whole);
  for (const int index : list) {
    const schedule::Connection& c = whole.connections.at(static_cast<size_t>(index));
    ends.push_back(
        name_of(is_send ? c.receiver : c.sender, c.tag, c.channel, is_send, routes.of(c.tag)));
  }
  return ends;
}

std::optional<BlockReference> reference(OperandBuffer place, uint16_t block) {
  switch (place) {
    case OperandBuffer::None:
      return std::nullopt;
    case OperandBuffer::Input:
      return input(block);
    case OperandBuffer::Output:
      return output(block);
    case OperandBuffer::Scratch:
      return scratch(block);
  }
  return std::nullopt;
}

/// The compact form says all that the schedule says.
void expect_same(const Schedule& whole, const Instruction& instruction, const Program& program,
                 const CompactInstruction& compact) {
  EXPECT_EQ(ends_in(program, compact.receive, compact.receive_count),
            ends_in(whole, instruction.receive_from, false));
  EXPECT_EQ(ends_in(program, compact.send, compact.send_count),
            ends_in(whole, instruction.send_to, true));
  EXPECT_EQ(reference(compact.source, compact.source_block), instruction.source);
  EXPECT_EQ(reference(compact.target, compact.target_block), instruction.target);
  EXPECT_EQ(compact.source_position, instruction.source_position);
  EXPECT_EQ(compact.flags, (instruction.reduce ? kReduce : 0) | (instruction.finish ? kFinish : 0));
  const bool is_cut = schedule::cuts_one_buffer(whole.collective);
  EXPECT_EQ(compact.chunk_block, is_cut ? schedule::chunk_block(instruction) : 0);
}

void expect_same(const Schedule& whole, const Program& program) {
  const auto& channels = whole.ranks.at(static_cast<size_t>(program.rank));
  EXPECT_EQ(program.nranks, whole.nranks);
  EXPECT_EQ(program.nchannels, static_cast<int>(channels.size()));
  ASSERT_EQ(program.works.size(), 1u);
  const WorkShape& work = program.works[0];
  EXPECT_EQ(work.nblocks, whole.nblocks);
  EXPECT_EQ(work.input_blocks, schedule::input_blocks(whole, program.rank));
  EXPECT_EQ(work.output_blocks, schedule::output_blocks(whole, program.rank));
  EXPECT_EQ(work.scratch_blocks, whole.scratch_blocks);
  EXPECT_EQ(work.first_channel, 0);
  EXPECT_EQ(work.nchannels, program.nchannels);
  size_t flat = 0;
  for (size_t channel = 0; channel < channels.size(); ++channel) {
    for (const schedule::Worker& worker : channels[channel].workers) {
      SCOPED_TRACE(fmt::format("rank {} flat worker {}", program.rank, flat));
      const CompactWorker& compact = program.workers.at(flat++);
      EXPECT_EQ(compact.channel, channel);
      EXPECT_EQ(compact.weight, worker.weight);
      EXPECT_EQ(compact.work, 0);
      ASSERT_EQ(compact.count, worker.instructions.size());
      for (size_t i = 0; i < worker.instructions.size(); ++i) {
        SCOPED_TRACE(fmt::format("instruction {}", i));
        expect_same(whole, worker.instructions[i], program,
                    program.instructions.at(compact.first + i));
      }
    }
  }
  EXPECT_EQ(flat, program.workers.size());
}

/// How often the instructions name each port.
std::vector<int> uses_of_ports(const Program& program) {
  std::vector<int> uses(program.ports.size());
  for (const CompactInstruction& i : program.instructions) {
    for (size_t k = i.receive; k < size_t{i.receive} + i.receive_count; ++k)
      ++uses[program.indices.at(k)];
    for (size_t k = i.send; k < size_t{i.send} + i.send_count; ++k) ++uses[program.indices.at(k)];
  }
  return uses;
}

TEST(Compile, KeepsEveryFieldOfEveryAlgorithm) {
  for (const planner::Form& algorithm : planner::forms()) {
    for (const int nranks : {1, 2, 3, 8, 33}) {
      if (nranks < algorithm.min_ranks || nranks > algorithm.max_ranks) continue;
      SCOPED_TRACE(fmt::format("{} of {}", algorithm.name, nranks));
      const Result<Schedule> whole = algorithm.build(nranks, {.weights = {1, 4, 2}});
      ASSERT_TRUE(whole.is_ok());
      for (int rank = 0; rank < nranks; ++rank) {
        const Result<Program> program = compile(whole.value(), rank);
        ASSERT_TRUE(program.is_ok()) << program.status().message();
        EXPECT_EQ(program.value().rank, rank);
        expect_same(whole.value(), program.value());
        std::vector<int> steps;
        for (const Port& port : program.value().ports) steps.push_back(port.steps);
        EXPECT_EQ(steps, uses_of_ports(program.value()));
      }
    }
  }
}

TEST(Compile, KeepsChannelsTagsScratchAndTheBlockOfAChunk) {
  Builder builder = builder_of(3, 4);
  WorkerBuilder first = builder.add_worker(1, 0, 5);
  first.add({.receive_from = first.from(2, 9), .target = scratch(1), .chunk_of = 3});
  WorkerBuilder second = builder.add_worker(1, 2);
  const std::vector<int> peers{2, 0};
  second.add({.source = scratch(1), .send_to = second.to(peers, 4), .chunk_of = 3});
  second.add({.receive_from = second.from(peers), .reduce = true, .target = output(2)});
  const Schedule whole = std::move(builder).take();
  const Result<Program> program = compile(whole, 1);
  ASSERT_TRUE(program.is_ok()) << program.status().message();
  expect_same(whole, program.value());
  EXPECT_EQ(program.value().works[0].scratch_blocks, 2);
  EXPECT_EQ(program.value().nchannels, 3);
}

TEST(Compile, GivesTheSameProgramFromOneRanksPartAsFromTheWhole) {
  for (const planner::Form& algorithm : planner::forms()) {
    for (int rank = 0; rank < 5; ++rank) {
      SCOPED_TRACE(fmt::format("{} rank {}", algorithm.name, rank));
      const std::vector<std::vector<int>> rings{{0, 1, 2, 3, 4}, {3, 1, 4, 0, 2}};
      const Result<Schedule> whole = algorithm.build(5, {.rings = rings});
      const Result<Schedule> part = algorithm.build(5, {.only_rank = rank, .rings = rings});
      ASSERT_TRUE(whole.is_ok() && part.is_ok());
      const lowering::Routes routes = lowering::routes_of(whole.value());
      const Result<Program> a = compile(whole.value(), rank),
                            b = compile(part.value(), rank, routes);
      ASSERT_TRUE(a.is_ok() && b.is_ok());
      expect_same(whole.value(), b.value());
      EXPECT_EQ(a.value().indices, b.value().indices);
      ASSERT_EQ(a.value().instructions.size(), b.value().instructions.size());
      EXPECT_EQ(std::memcmp(a.value().instructions.data(), b.value().instructions.data(),
                            a.value().instructions.size() * sizeof(CompactInstruction)),
                0);
    }
  }
}

TEST(Compile, StoresEqualPortListsOnce) {
  const Result<Schedule> ring = algorithms::all_reduce_ring(64);
  const Result<Program> program = compile(ring.value(), 7);
  ASSERT_TRUE(program.is_ok());
  EXPECT_EQ(program.value().ports.size(), 2u);
  EXPECT_EQ(program.value().indices.size(), 2u);
}

TEST(Compile, TakesEachAlgorithmAtItsLargest) {
  for (const planner::Form& algorithm : planner::forms()) {
    const int last = algorithm.max_ranks - 1;
    const Result<Schedule> part = algorithm.build(algorithm.max_ranks, {.only_rank = last});
    ASSERT_TRUE(part.is_ok()) << part.status().message();
    const Result<Program> program = compile(part.value(), last);
    EXPECT_TRUE(program.is_ok()) << algorithm.name << ": " << program.status().message();
  }
}

struct Overflow {
  const char* name;
  Schedule (*build)();
  const char* message;
};
void PrintTo(const Overflow& overflow, std::ostream* out) { *out << overflow.name; }

Schedule one(Instruction instruction, int weight = 1) {
  Builder builder = builder_of(2, 70000);
  builder.add_worker(0, 0, weight).add(std::move(instruction));
  return std::move(builder).take();
}

std::vector<int> ranks(int first, int last) {
  std::vector<int> result;
  for (int rank = first; rank < last; ++rank) result.push_back(rank);
  return result;
}

Schedule many_peers(bool is_send, int count) {
  Builder builder = builder_of(count + 1);
  WorkerBuilder worker = builder.add_worker(0);
  const std::vector<int> peers = ranks(1, count + 1);
  if (is_send)
    worker.add({.source = input(0), .send_to = worker.to(peers)});
  else
    worker.add({.receive_from = worker.from(peers), .reduce = true, .target = output(0)});
  return std::move(builder).take();
}

Schedule many_instructions(int workers, int each) {
  Builder builder = builder_of(2);
  for (int i = 0; i < workers; ++i) {
    WorkerBuilder worker = builder.add_worker(0);
    for (int k = 0; k < each; ++k) worker.add({.source = input(0), .target = output(0)});
  }
  return std::move(builder).take();
}

/// Distinct lists of 250 receives each, so that none can share indices.
Schedule many_indices(int lists) {
  Builder builder = builder_of(600);
  WorkerBuilder worker = builder.add_worker(0);
  for (int i = 0; i < lists; ++i)
    worker.add(
        {.receive_from = worker.from(ranks(1 + i, 251 + i)), .reduce = true, .target = output(0)});
  return std::move(builder).take();
}

Schedule many_ports(int count) {
  Builder builder = builder_of(2);
  WorkerBuilder worker = builder.add_worker(0);
  for (int tag = 0; tag < count / 2; ++tag)
    worker.add({.receive_from = worker.from(1, tag), .send_to = worker.to(1, tag), .chunk_of = 0});
  return std::move(builder).take();
}

Schedule high_channel() {
  Builder builder = builder_of(2);
  builder.add_worker(0, 65536).add({.source = input(0), .target = output(0)});
  return std::move(builder).take();
}

const Overflow kOverflows[] = {
    {"Receives", [] { return many_peers(false, 256); },
     "rank 0 channel 0 worker 0 instruction 0: the number of receives is 256; a program has room "
     "for "
     "255"},
    {"Sends", [] { return many_peers(true, 256); },
     "rank 0 channel 0 worker 0 instruction 0: the number of sends is 256"},
    {"SourceBlock", [] { return one({.source = input(65536), .target = output(0)}); },
     "rank 0 channel 0 worker 0 instruction 0: the source block is 65536; a program has room for "
     "65535"},
    {"TargetBlock", [] { return one({.source = input(0), .target = output(65536)}); },
     "the target block is 65536"},
    {"ChunkBlock", [] { return one({.source = input(0), .target = output(0), .chunk_of = 65536}); },
     "the block of the chunk is 65536"},
    {"NegativeBlock", [] { return one({.source = input(-2), .target = output(0)}); },
     "the source block is -2"},
    {"NoChunk", [] { return one({.chunk_of = -1}); }, "the block of the chunk is -1"},
    {"SourcePosition",
     [] { return one({.source = input(0), .source_position = 1, .target = output(0)}); },
     "the source position is 1 with 0 receives"},
    {"Weight", [] { return one({.source = input(0), .target = output(0)}, 256); },
     "rank 0 channel 0 worker 0: a worker's weight is 256; a program has room for 255"},
    {"NoWeight", [] { return one({.source = input(0), .target = output(0)}, 0); },
     "rank 0 channel 0 worker 0: a worker's weight is 0"},
    {"WorkerLength", [] { return many_instructions(1, 65536); },
     "rank 0 channel 0 worker 0: the number of instructions of a worker is 65536"},
    {"Instructions", [] { return many_instructions(3, 40000); },
     "rank 0 channel 0 worker 2: the number of instructions before a worker is 80000"},
    {"Indices", [] { return many_indices(264); },
     "rank 0 channel 0 worker 0 instruction 262: the number of port indices is 65750"},
    {"PortsAndTheirIndices", [] { return many_ports(65538); },
     "rank 0 channel 0 worker 0 instruction 32767: the number of port indices is 65536"},
    {"Channel", high_channel, "rank 0 channel 65536 worker 0: a channel's number is 65536"},
    {"UnknownConnection", [] { return one({.receive_from = {4}, .target = output(0)}); },
     "rank 0 channel 0 worker 0 instruction 0: there is no connection 4"},
};

class CompileRefuses : public testing::TestWithParam<Overflow> {};

TEST_P(CompileRefuses, WhatDoesNotFitAndSaysWhatAndWhere) {
  const Result<Program> program = compile(GetParam().build(), 0);
  ASSERT_FALSE(program.is_ok());
  EXPECT_EQ(program.status().code(), Code::InvalidUsage);
  EXPECT_THAT(program.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Program, CompileRefuses, testing::ValuesIn(kOverflows),
                         [](const testing::TestParamInfo<Overflow>& test) {
                           return std::string(test.param.name);
                         });

TEST(Compile, TakesWhatJustFits) {
  for (const Schedule& schedule : {many_peers(false, 255), many_peers(true, 255),
                                   many_instructions(1, 65535), many_indices(262)}) {
    const Result<Program> program = compile(schedule, 0);
    ASSERT_TRUE(program.is_ok()) << program.status().message();
    expect_same(schedule, program.value());
  }
}

TEST(Compile, RefusesAnotherRanksConnection) {
  Builder builder = builder_of(3);
  builder.add_worker(0).add({.source = input(0), .send_to = builder.add_worker(1).to(2)});
  const Result<Program> program = compile(std::move(builder).take(), 0);
  ASSERT_FALSE(program.is_ok());
  EXPECT_THAT(
      program.status().message(),
      HasSubstr("connection 0 from rank 1 to rank 2 on channel 0 has its sender elsewhere"));
}

TEST(Compile, RefusesARankThatIsNotThere) {
  for (const int rank : {-1, 3})
    EXPECT_FALSE(compile(algorithms::all_reduce_ring(3).value(), rank).is_ok());
}

}  // namespace
}  // namespace niccolite::executor
