// What the checker knows of each collective: which buffers there are, what is in place with what,
// and what must be where at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/builder.h"
#include "schedule/check.h"

namespace niccolite::schedule {
namespace {

using testing::HasSubstr;

Builder builder_of(Collective collective, int nranks, int root = 0) {
  return Builder({.collective = collective,
                  .algorithm = "sketch",
                  .nranks = nranks,
                  .nblocks = cuts_one_buffer(collective) ? 1 : nranks,
                  .root = root,
                  .scratch_blocks = 1});
}

std::string verdict(Builder builder) { return check(std::move(builder).take()).message(); }

TEST(Blocks, AreThoseOfTheTableInTheHeader) {
  struct Row {
    Collective collective;
    int input, input_at_root, output, output_at_root;
  };
  for (const Row& row :
       {Row{Collective::AllReduce, 1, 1, 1, 1}, Row{Collective::Reduce, 1, 1, 0, 1},
        Row{Collective::Broadcast, 0, 1, 1, 1}, Row{Collective::AllGather, 1, 1, 3, 3},
        Row{Collective::ReduceScatter, 3, 3, 1, 1}, Row{Collective::AllToAll, 3, 3, 3, 3},
        Row{Collective::Gather, 1, 1, 0, 3}, Row{Collective::Scatter, 0, 3, 1, 1}}) {
    Builder builder = builder_of(row.collective, 3, /*root=*/1);
    const Schedule schedule = std::move(builder).take();
    SCOPED_TRACE(name_of(row.collective));
    for (const int rank : {0, 2}) {
      EXPECT_EQ(input_blocks(schedule, rank), row.input);
      EXPECT_EQ(output_blocks(schedule, rank), row.output);
    }
    EXPECT_EQ(input_blocks(schedule, 1), row.input_at_root);
    EXPECT_EQ(output_blocks(schedule, 1), row.output_at_root);
  }
}

/// Two ranks give each other what they have; rank 1 keeps its own first or last.
Schedule all_gather(bool own_last) {
  Builder builder = builder_of(Collective::AllGather, 2);
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    const Instruction own{.source = input(0), .target = output(rank)};
    worker.add({.source = input(0), .send_to = worker.to(1 - rank)});
    if (!own_last) worker.add(own);
    worker.add({.receive_from = worker.from(1 - rank), .target = output(1 - rank)});
    if (own_last) worker.add(own);
  }
  return std::move(builder).take();
}

TEST(AllGather, OwnBlockMayBeCopiedAtAnyTime) {
  EXPECT_TRUE(check(all_gather(false)).is_ok()) << check(all_gather(false)).message();
  EXPECT_TRUE(check(all_gather(true)).is_ok()) << check(all_gather(true)).message();
}

TEST(AllGather, SwappedBlocksAreWrong) {
  Schedule schedule = all_gather(false);
  std::vector<Instruction>& list = schedule.ranks[1][0].workers[0].instructions;
  std::swap(list[1].target, list[2].target);
  EXPECT_EQ(check(schedule).message(),
            "rank 1 channel 0 worker 0 instruction 1 leaves output block 0 with input block 0 of "
            "rank 1, not input block 0 of rank 0");
}

/// Output block `rank` is the input, so using it for something else first loses the input.
TEST(AllGather, OwnOutputBlockAsScratchIsWrongInPlaceOnly) {
  Schedule schedule = all_gather(/*own_last=*/true);
  for (size_t rank = 0; rank < 2; ++rank) {
    std::vector<Instruction>& list = schedule.ranks[rank][0].workers[0].instructions;
    const BlockReference own = output(static_cast<int>(rank)), other = *list[1].target;
    list[1].target = own;
    list.insert(list.begin() + 2, {.source = own, .target = other});
  }
  EXPECT_EQ(
      check(schedule).message(),
      "rank 1 channel 0 worker 0 instruction 3 reads input block 0 after rank 1 channel 0 worker "
      "0 instruction 1 wrote over it (in place)");
}

TEST(ReduceScatter, InPlaceTheResultTakesTheOwnBlocksPlace) {
  for (const bool reads_own_after : {false, true}) {
    Builder builder = builder_of(Collective::ReduceScatter, 2);
    for (int rank = 0; rank < 2; ++rank) {
      WorkerBuilder worker = builder.add_worker(rank);
      worker.add({.source = input(1 - rank), .send_to = worker.to(1 - rank)});
      worker.add({.receive_from = worker.from(1 - rank),
                  .source = input(rank),
                  .source_position = rank,
                  .reduce = true,
                  .target = output(0),
                  .finish = true});
      if (reads_own_after) worker.add({.source = input(rank), .target = scratch(0)});
    }
    EXPECT_EQ(
        verdict(std::move(builder)),
        reads_own_after
            ? "rank 1 channel 0 worker 0 instruction 2 reads input block 1 after rank 1 channel "
              "0 worker 0 instruction 1 wrote over it (in place)"
            : "");
  }
}

TEST(ReduceScatter, OperandsOfDifferentBlocksAreNotReduced) {
  Builder builder = builder_of(Collective::ReduceScatter, 2);
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(0), .send_to = worker.to(1 - rank)});
    worker.add({.receive_from = worker.from(1 - rank),
                .source = input(rank),
                .source_position = rank,
                .reduce = true,
                .target = output(0),
                .finish = true});
  }
  EXPECT_EQ(
      verdict(std::move(builder)),
      "rank 1 channel 0 worker 0 instruction 1 reduces the chunk from rank 0, of block 0, with "
      "input block 1, of block 1");
}

TEST(ReduceScatter, TheSumOfAnotherBlockIsWrong) {
  Builder builder = builder_of(Collective::ReduceScatter, 2);
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(rank), .send_to = worker.to(1 - rank)});
    worker.add({.receive_from = worker.from(1 - rank),
                .source = input(1 - rank),
                .source_position = rank,
                .reduce = true,
                .target = output(0),
                .finish = true});
  }
  EXPECT_EQ(
      verdict(std::move(builder)),
      "rank 0 channel 0 worker 0 instruction 1 leaves output block 0 with input block 1 of the "
      "ranks, not input block 0 of all ranks");
}

/// The root's result is its input block `root`: another worker must not read that afterwards.
TEST(Scatter, InPlaceTheOwnBlockIsWhereItIs) {
  for (const int kept : {1, 0}) {
    Builder builder = builder_of(Collective::Scatter, 2, /*root=*/1);
    WorkerBuilder root = builder.add_worker(1), other = builder.add_worker(0);
    root.add({.source = input(kept), .target = output(0)});
    root.add({.source = input(0), .send_to = root.to(0)});
    if (kept == 0) root.add({.source = input(1), .target = output(0)});
    other.add({.receive_from = other.from(1), .target = output(0)});
    EXPECT_EQ(verdict(std::move(builder)),
              kept == 1
                  ? ""
                  : "rank 1 channel 0 worker 0 instruction 2 reads input block 1 after rank 1 "
                    "channel 0 worker 0 instruction 0 wrote over it (in place)");
  }
}

TEST(Gather, InPlaceTheOwnBlockIsTheInput) {
  for (const bool own_last : {false, true}) {
    Builder builder = builder_of(Collective::Gather, 2, /*root=*/1);
    WorkerBuilder root = builder.add_worker(1), other = builder.add_worker(0);
    other.add({.source = input(0), .send_to = other.to(1)});
    const Instruction own{.source = input(0), .target = output(1)};
    if (!own_last) root.add(own);
    // Through the place of the own block, which in place is the input.
    if (own_last) {
      root.add({.receive_from = root.from(0), .target = output(1)});
      root.add({.source = output(1), .target = output(0)});
      root.add(own);
    } else {
      root.add({.receive_from = root.from(0), .target = output(0)});
    }
    EXPECT_EQ(verdict(std::move(builder)),
              own_last ? "rank 1 channel 0 worker 0 instruction 2 reads input block 0 after rank 1 "
                         "channel 0 worker 0 instruction 0 wrote over it (in place)"
                       : "");
  }
}

TEST(Broadcast, InPlaceConcernsTheRootAlone) {
  Builder builder = builder_of(Collective::Broadcast, 2, /*root=*/0);
  WorkerBuilder root = builder.add_worker(0), other = builder.add_worker(1);
  root.add({.source = input(0), .send_to = root.to(1)});
  root.add({.receive_from = root.from(1), .target = output(0)});
  root.add({.source = input(0), .send_to = root.to(1)});
  other.add({.receive_from = other.from(0), .target = output(0)});
  other.add({.source = output(0), .send_to = other.to(0)});
  other.add({.receive_from = other.from(0), .target = output(0)});
  EXPECT_EQ(
      verdict(std::move(builder)),
      "rank 0 channel 0 worker 0 instruction 2 reads input block 0 after rank 0 channel 0 worker "
      "0 instruction 1 wrote over it (in place)");
}

/// Executors leave such a block alone: whoever else reads it needs no order.
TEST(Broadcast, ACopyOntoItselfInPlaceIsNone) {
  Builder builder = builder_of(Collective::Broadcast, 2, /*root=*/0);
  WorkerBuilder copy = builder.add_worker(0), root = builder.add_worker(0),
                other = builder.add_worker(1);
  copy.add({.source = input(0), .target = output(0)});
  root.add({.source = input(0), .send_to = root.to(1)});
  other.add({.receive_from = other.from(0), .target = output(0)});
  EXPECT_EQ(verdict(std::move(builder)), "");
}

/// What would be wrong in place is right here: there is no in place.
TEST(AllToAll, MayReadABlockAfterTheOutputBlockOfThatNumberIsWritten) {
  Builder builder = builder_of(Collective::AllToAll, 2);
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(rank), .target = output(rank)});
    worker.add({.source = input(rank), .target = scratch(0)});
    worker.add({.source = input(1 - rank), .send_to = worker.to(1 - rank)});
    worker.add({.receive_from = worker.from(1 - rank), .target = output(1 - rank)});
  }
  EXPECT_EQ(verdict(std::move(builder)), "");
}

TEST(AllToAll, ABlockForAnotherRankIsWrong) {
  Builder builder = builder_of(Collective::AllToAll, 2);
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.source = input(rank), .target = output(rank)});
    worker.add({.source = input(rank), .send_to = worker.to(1 - rank)});
    worker.add({.receive_from = worker.from(1 - rank), .target = output(1 - rank)});
  }
  EXPECT_EQ(verdict(std::move(builder)),
            "rank 0 channel 0 worker 0 instruction 2 leaves output block 1 with input block 1 of "
            "rank 1, not input block 0 of rank 1");
}

// ---- messages

/// 0 -> 1, 2 -> 1, 1 -> 1, 1 -> 0; each worker's place is in the comments.
Schedule messages() {
  Builder builder({.collective = Collective::PointToPoint,
                   .algorithm = "sketch",
                   .nranks = 3,
                   .nblocks = 3,
                   .scratch_blocks = 1,
                   .nchannels = 1,
                   .messages = {{0, 1, 0, 0}, {2, 1, 0, 1}, {1, 1, 0, 2}, {1, 0, 1, 0}}});
  WorkerBuilder a = builder.add_worker(0), b = builder.add_worker(0);
  a.add({.source = input(0), .send_to = a.to(1)});          // rank 0 worker 0
  b.add({.receive_from = b.from(1), .target = output(0)});  // rank 0 worker 1
  WorkerBuilder c = builder.add_worker(1), d = builder.add_worker(1);
  c.add({.receive_from = c.from(0), .target = output(0)});               // rank 1 worker 0
  d.add({.receive_from = d.from(2), .target = output(1)});               // rank 1 worker 1
  builder.add_worker(1).add({.source = input(0), .target = output(2)});  // rank 1 worker 2
  WorkerBuilder e = builder.add_worker(1), f = builder.add_worker(2);
  e.add({.source = input(1), .send_to = e.to(0)});  // rank 1 worker 3
  f.add({.source = input(0), .send_to = f.to(1)});  // rank 2 worker 0
  return std::move(builder).take();
}

Instruction& in_worker(Schedule& schedule, size_t rank, size_t worker) {
  return schedule.ranks[rank][0].workers[worker].instructions[0];
}

TEST(Messages, OfARightScheduleAreAccepted) {
  const Status status = check(messages(), {.depth = 1});
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(input_blocks(messages(), 1), 2);
  EXPECT_EQ(output_blocks(messages(), 1), 3);
}

struct Broken {
  const char* name;
  void (*break_it)(Schedule&);
  const char* message;
};
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

const Broken kBroken[] = {
    {"OfAnotherCollective", [](Schedule& s) { s.collective = Collective::AllToAll; },
     "the schedule for all_to_all has 4 messages"},
    {"ToNobody", [](Schedule& s) { s.messages[1].receiver = 3; },
     "message 1 goes from rank 2 to rank 3; there are 3 ranks"},
    {"Twice",
     [](Schedule& s) {
       s.messages.push_back({0, 1, 1, 3});
     },
     "the message from rank 0 to rank 1 exists twice"},
    {"SendBlockShared", [](Schedule& s) { s.messages[3].send_block = 0; },
     "the message from rank 1 to rank 0 is input block 0, which another message is too"},
    {"ReceiveBlockShared", [](Schedule& s) { s.messages[1].receive_block = 0; },
     "the message from rank 2 to rank 1 is output block 0, which another message is too"},
    {"SendBlockLeftOut", [](Schedule& s) { s.messages[3].send_block = 2; },
     "the message from rank 1 to rank 0 is input block 2, though rank 1 sends 2"},
    {"ReceiveBlockLeftOut", [](Schedule& s) { s.messages[1].receive_block = 7; },
     "the message from rank 2 to rank 1 is output block 7, though rank 1 receives 3"},
    {"NotSent",
     [](Schedule& s) {
       s.messages.push_back({2, 0, 1, 1});
     },
     "rank 2: no instruction sends the message from rank 2 to rank 0"},
    {"TwoInAWorker",
     [](Schedule& s) {
       auto& workers = s.ranks[1][0].workers;
       workers[2].instructions.push_back(workers[3].instructions[0]);
       workers.pop_back();
     },
     "rank 1 channel 0 worker 2 instruction 1 stands behind another; a worker moves one message"},
    {"ChunkNamed", [](Schedule& s) { in_worker(s, 1, 3).chunk_of = 0; },
     "rank 1 channel 0 worker 3 instruction 0 names a block's chunk; a message has its own size"},
    {"BlockOfAnother", [](Schedule& s) { in_worker(s, 1, 3).source = input(0); },
     "rank 1 channel 0 worker 3 instruction 0 moves the message from rank 1 to rank 1 to rank 0"},
    {"StoredForAnother",
     [](Schedule& s) { std::swap(in_worker(s, 1, 0).target, in_worker(s, 1, 1).target); },
     "rank 1 channel 0 worker 0 instruction 0 stores a message from rank 0 in output block 1, not "
     "that of the message from rank 2 to rank 1"},
    {"ToItselfInAnothersPlace", [](Schedule& s) { in_worker(s, 1, 2).target = output(1); },
     "rank 1 channel 0 worker 2 instruction 0 stores a message from rank 1 in output block 1"},
    {"ToItselfASecondTime",
     [](Schedule& s) { s.ranks[1][0].workers.push_back(s.ranks[1][0].workers[2]); },
     "rank 1 channel 0 worker 4 instruction 0 sends the message from rank 1 to rank 1 a second "
     "time"},
    {"TwoDestinations", [](Schedule& s) { in_worker(s, 1, 3).target = output(2); },
     "rank 1 channel 0 worker 3 instruction 0 has several destinations; a message has one"},
    {"ThroughScratch", [](Schedule& s) { in_worker(s, 1, 2).target = scratch(0); },
     "rank 1 channel 0 worker 2 instruction 0 names scratch or reads the output"},
    {"BlockOfNobody", [](Schedule& s) { in_worker(s, 2, 0).source = input(1); },
     "rank 2 channel 0 worker 0 instruction 0 names input block 1 of 1"},
    {"SendMissing", [](Schedule& s) { s.ranks[2][0].workers.clear(); },
     "rank 1 channel 0 worker 1 instruction 0 waits for a chunk from rank 2 that is never sent"},
};

class BrokenMessages : public testing::TestWithParam<Broken> {};

TEST_P(BrokenMessages, AreRefusedWithTheirPlaceAndCause) {
  Schedule schedule = messages();
  GetParam().break_it(schedule);
  const Status status = check(schedule);
  ASSERT_FALSE(status.is_ok());
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Form, BrokenMessages, testing::ValuesIn(kBroken),
                         [](const testing::TestParamInfo<Broken>& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace niccolite::schedule
