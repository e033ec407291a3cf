// MSCCL++'s plans: our own small plans are read and proved, and broken ones are refused with the
// reason and its line.
#include "importers/mscclpp_json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importers/import.h"
#include "schedule/check.h"
#include "tests/importers/broken.h"

namespace niccolite::importers {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// A plan of one thread block for each rank, unless `blocks` are more. Channel and remote buffer i
/// of a rank are those of its i-th peer.
class PlanText {
 public:
  PlanText(const char* collective, int ranks, int inputs, int outputs, int scratch,
           char remote = 's', int blocks = 1)
      : collective_(collective),
        ranks_(ranks),
        inputs_(inputs),
        outputs_(outputs),
        scratch_(scratch),
        remote_(remote),
        ops_(static_cast<size_t>(ranks), std::vector<std::string>(static_cast<size_t>(blocks))) {}

  void add(int rank, const std::string& op, int block = 0) {
    std::string& ops = ops_[static_cast<size_t>(rank)][static_cast<size_t>(block)];
    ops += (ops.empty() ? "" : ",\n") + op;
  }
  bool is_in_place = false;

  std::string text() const {
    std::string all = fmt::format(
        "{{\"name\": \"Our Plan\", \"collective\": \"{}\", \"protocol\": \"Simple\", \"inplace\": "
        "{},\n\"min_message_size\": 1024, \"max_message_size\": 4096, \"gpus\": [\n",
        collective_, is_in_place);
    for (int rank = 0; rank < ranks_; ++rank) {
      std::string peers, ids, buffers, blocks;
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer == rank) continue;
        peers += fmt::format("{}{}", peers.empty() ? "" : ", ", peer);
        ids += fmt::format("{}{}", ids.empty() ? "" : ", ", peer < rank ? peer : peer - 1);
        buffers += fmt::format(
            "{}{{\"rank\": {}, \"type\": \"{}\", \"access_channel_types\": [\"memory\"]}}",
            buffers.empty() ? "" : ", ", peer, remote_);
      }
      for (size_t block = 0; block < ops_[static_cast<size_t>(rank)].size(); ++block)
        blocks += fmt::format(
            "{}{{\"id\": {}, \"channels\": [{{\"channel_type\": \"memory\", \"channel_ids\": "
            "[{}]}}],\n\"remote_buffer_refs\": [{{\"access_channel_type\": \"memory\", "
            "\"remote_buffer_ids\": [{}]}}], \"ops\": [\n{}\n]}}",
            block == 0 ? "" : ",\n", block, ids, ids, ops_[static_cast<size_t>(rank)][block]);
      all += fmt::format(
          "{}{{\"id\": {}, \"input_chunks\": {}, \"output_chunks\": {}, \"scratch_chunks\": {},\n"
          "\"channels\": [{{\"channel_type\": \"memory\", \"connected_to\": [{}]}}],\n"
          "\"remote_buffers\": [{}], \"semaphores\": [{{\"init_value\": 0}}],\n"
          "\"threadblocks\": [\n{}]}}",
          rank == 0 ? "" : ",\n", rank, inputs_, outputs_, scratch_, peers, buffers, blocks);
    }
    return all + "]}\n";
  }

 private:
  const char* collective_;
  int ranks_, inputs_, outputs_, scratch_;
  char remote_;
  std::vector<std::vector<std::string>> ops_;
};

std::string here(char buffer, int index, int size = 1) {
  return fmt::format("{{\"type\": \"{}\", \"index\": {}, \"size\": {}}}", buffer, index, size);
}
/// A buffer of the peer.
std::string there(int rank, int peer, int index, int size = 1) {
  return fmt::format("{{\"buffer_id\": {}, \"index\": {}, \"size\": {}}}",
                     peer < rank ? peer : peer - 1, index, size);
}
std::string op(const char* name, const std::string& from, const std::string& to,
               const char* more = "") {
  return fmt::format(
      "{{\"name\": \"{}\", \"channel_type\": \"memory\", \"src_buff\": [{}], \"dst_buff\": "
      "[{}]{}}}",
      name, from, to, more);
}
std::string sync(const char* name, int rank, int peer) {
  return fmt::format("{{\"name\": \"{}\", \"channel_type\": \"memory\", \"channel_ids\": [{}]}}",
                     name, peer < rank ? peer : peer - 1);
}

/// All put packets of all into scratch of all, which adds them.
PlanText packets(int n) {
  PlanText plan("allreduce", n, 1, 1, n);
  for (int rank = 0; rank < n; ++rank) {
    std::string sources = here('i', 0);
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      plan.add(rank, op("ppkt", here('i', 0), there(rank, peer, rank)));
      sources += ", " + here('s', peer);
    }
    plan.add(rank, op("repkt", sources, here('o', 0), ", \"reduce_op\": \"sum\""));
  }
  return plan;
}

/// Each rank gets all blocks from their owners, when these have said that they are there.
PlanText gets(int n, bool waits = true) {
  PlanText plan("allgather", n, 2, 2 * n, 2, 's');
  for (int rank = 0; rank < n; ++rank) {
    plan.add(rank, op("copy", here('i', 0, 2), here('s', 0, 2)));
    for (int peer = 0; peer < n; ++peer)
      if (peer != rank) plan.add(rank, sync("signal", rank, peer));
    plan.add(rank, op("copy", here('i', 0, 2), here('o', 2 * rank, 2)));
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      if (waits) plan.add(rank, sync("wait", rank, peer));
      plan.add(rank, op("get", there(rank, peer, 0, 2), here('o', 2 * peer, 2)));
    }
  }
  return plan;
}

/// In place: each rank reads its block of the others, adds them, and puts the sum everywhere.
PlanText read_and_put(int n, bool tells_that_it_has_read = true) {
  PlanText plan("allreduce", n, n, n, 0, 'i');
  plan.is_in_place = true;
  for (int rank = 0; rank < n; ++rank) {
    const auto to_all = [&](const char* name) {
      for (int peer = 0; peer < n; ++peer)
        if (peer != rank) plan.add(rank, sync(name, rank, peer));
    };
    std::string sources = here('i', rank), targets = here('i', rank);
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      sources += ", " + there(rank, peer, rank);
      targets += ", " + there(rank, peer, rank);
    }
    to_all("signal");
    to_all("wait");
    if (tells_that_it_has_read)
      plan.add(rank, op("rres", sources, targets, ", \"reduce_op\": \"sum\""));
    else
      plan.add(rank, op("rres", sources,
                        here('i', (rank + 1) % n) + targets.substr(targets.find("}") + 1),
                        ", \"reduce_op\": \"sum\""));
    to_all("signal");
    to_all("wait");
  }
  return plan;
}

schedule::File imported(const std::string& text) {
  Result<Foreign> read = import(text);
  EXPECT_TRUE(read.is_ok()) << read.status().message() << "\n" << text;
  if (!read.is_ok()) return {};
  const Result<int> depth = schedule::least_depth(read->file.schedule);
  EXPECT_TRUE(depth.is_ok()) << depth.status().message() << "\n" << to_file(read->file.schedule);
  return std::move(read->file);
}

TEST(MscclppJson, PacketsAreReceivedWhereTheyAreAdded) {
  const schedule::File file = imported(packets(3).text());
  const Schedule& schedule = file.schedule;
  EXPECT_EQ(schedule.algorithm, "our_plan");
  EXPECT_EQ(schedule.collective, Collective::AllReduce);
  EXPECT_EQ(file.use.min_bytes, 1024u);
  EXPECT_EQ(file.use.max_bytes, 4096u);
  EXPECT_EQ(schedule.scratch_blocks, 0);
  EXPECT_FALSE(schedule.partial_sums) << "one instruction adds all";
  for (const auto& channels : schedule.ranks) {
    ASSERT_EQ(channels[0].workers.size(), 1u);
    EXPECT_EQ(channels[0].workers[0].instructions.size(), 2u);  // send, and receive and add
  }
}

TEST(MscclppJson, GetsAreSentByTheirOwners) {
  const schedule::File file = imported(gets(3).text());
  EXPECT_EQ(file.schedule.ranks[0].size(), 2u) << "two chunks of a block are two channels";
  EXPECT_EQ(file.use.min_bytes, 341u) << "a call counts the bytes of one block";
}

TEST(MscclppJson, InPlaceSumsAreWrittenOverInputs) {
  for (const int n : {2, 4}) {
    const schedule::File file = imported(read_and_put(n).text());
    EXPECT_EQ(file.schedule.nblocks, n);
    EXPECT_EQ(file.schedule.scratch_blocks, 0);
  }
}

// Thread blocks share an operation, and wait for each other by a semaphore or a barrier.
TEST(MscclppJson, ThreadBlocksShareOperations) {
  for (const bool by_barrier : {false, true}) {
    PlanText plan("allgather", 2, 1, 2, 1, 'o', 2);
    const char* const barrier =
        "{\"name\": \"barrier\", \"barrier_id\": 0, \"num_threadblocks\": 2}";
    for (int rank = 0; rank < 2; ++rank) {
      for (int block = 0; block < 2; ++block) {
        const std::string part =
            fmt::format(", \"tbg_info\": {{\"tb_id\": {}, \"tbg_size\": 2}}", block);
        plan.add(rank, op("copy", here('i', 0), here('o', rank), part.c_str()), block);
        plan.add(rank, op("put", here('i', 0), there(rank, 1 - rank, rank), part.c_str()), block);
      }
      if (by_barrier)
        plan.add(rank, barrier, 1);
      else
        plan.add(rank, "{\"name\": \"sem_release\", \"semaphore_ids\": [0]}", 1);
      plan.add(rank, by_barrier ? barrier : "{\"name\": \"sem_acquire\", \"semaphore_ids\": [0]}",
               0);
      plan.add(rank, sync("signal", rank, 1 - rank), 0);
      plan.add(rank, sync("wait", rank, 1 - rank), 0);
    }
    const schedule::File file = imported(plan.text());
    EXPECT_EQ(file.schedule.ranks[0].size(), 2u) << "two parts of a chunk";
  }
}

TEST(MscclppJson, PipelinesAreDoneOnce) {
  std::string text = gets(2).text();
  const std::string pipeline =
      "{\"name\": \"pipeline\", \"iter_context\": {\"unit_size\": 1024, \"num_chunks\": 1}, "
      "\"ops\": [";
  for (size_t at = text.find("{\"name\": \"get\""); at != std::string::npos;
       at = text.find("{\"name\": \"get\"", at + pipeline.size() + 10)) {
    text.insert(text.find("}]}", at) + 3, "]}");
    text.insert(at, pipeline);
  }
  imported(text);
}

void expect_refused(const std::string& text, const char* reason) {
  const Result<Foreign> read = import(text);
  ASSERT_FALSE(read.is_ok()) << reason << "\n" << text;
  EXPECT_THAT(read.status().message(), ContainsRegex(reason)) << text;
}

TEST(MscclppJson, RacesAreNamedWithBothLines) {
  expect_refused(gets(2, /*waits=*/false).text(),
                 "^race: on gpu [01] line [0-9]+ (reads|writes) and line [0-9]+ (reads|writes) "
                 "chunk [01] of scratch, and nothing orders them$");
}

// Relaxed signals order no data.
TEST(MscclppJson, RelaxedSignalsDoNotOrderData) {
  std::string text = gets(2).text();
  for (const char* const name : {"\"signal\"", "\"wait\""})
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 5))
      text.insert(at + 1, "rlx");
  expect_refused(text, "^race: on gpu ");
}

TEST(MscclppJson, StandstillsAreNamed) {
  PlanText plan = gets(2);
  plan.add(1, sync("wait", 1, 0));
  expect_refused(plan.text(),
                 "^it never ends: line [0-9]+ \\(gpu 1\\) waits for a signal from gpu 0$");
  PlanText lonely = packets(2);
  lonely.add(0, "{\"name\": \"barrier\", \"barrier_id\": 3, \"num_threadblocks\": 2}");
  expect_refused(lonely.text(), "waits for barrier 3, to which 1 of 2 thread blocks have come");
  PlanText silent = packets(2);
  silent.add(0, op("upkt", here('s', 0), here('o', 0)));
  expect_refused(silent.text(), "waits for packets in chunk 0 of scratch");
  PlanText empty = packets(2);
  empty.add(1, "{\"name\": \"sem_acquire\", \"semaphore_ids\": [0]}");
  expect_refused(empty.text(), "\\(gpu 1\\) waits for semaphore 0");
}

TEST(MscclppJson, WrongPlansAreNotProved) {
  PlanText plan("allgather", 2, 1, 2, 0, 'o');
  for (int rank = 0; rank < 2; ++rank) {
    plan.add(rank, op("put", here('i', 0), there(rank, 1 - rank, 1 - rank)));
    plan.add(rank, sync("signal", rank, 1 - rank));
    plan.add(rank, sync("wait", rank, 1 - rank));
    plan.add(rank, op("copy", here('i', 0), here('o', 1 - rank)));
  }
  const Result<Foreign> read = import(plan.text());
  ASSERT_TRUE(read.is_ok()) << read.status().message();
  EXPECT_THAT(schedule::least_depth(read.value().file.schedule).status().message(),
              HasSubstr("output block"));
}

TEST(MscclppJson, WhatIsNotKnownIsRefusedWithItsLine) {
  const std::string text = packets(2).text();
  for (const Broken& c :
       {Broken{"\"ppkt\"", "\"ppkts\"",
               "line 9: the operation \"ppkts\" is not known; known are nop"},
        Broken{"\"ppkt\"", "\"gstore\"", "line 9: \"gstore\" is not imported"},
        Broken{"\"type\": \"i\", \"index\": 0", "\"type\": \"i\", \"index\": 1",
               "line 9: \"index\" must be a whole number from 0 to 0"},
        Broken{"\"type\": \"i\", \"index\": 0", "\"type\": \"x\", \"index\": 0",
               "line 9: \"type\" is \"x\", none of i, o, s"},
        Broken{"\"buffer_id\": 0", "\"buffer_id\": 7", "line 9: \"buffer_id\" must be"},
        Broken{"\"buffer_id\": 0", "\"switch_channel_id\": 0", "line 9: switch channels are not"},
        Broken{"\"reduce_op\": \"sum\"", "\"reduce_op\": \"min\"", "line 10: reductions are of"},
        Broken{"\"allreduce\"", "\"custom\"", "line 1: \"collective\" is \"custom\"; those that"},
        Broken{"\"allreduce\"", "\"allgather\"", "chunks, which 2 ranks do not divide"},
        Broken{"\"id\": 1, \"input", "\"id\": 0, \"input", "gpu 0 is there twice"},
        Broken{"\"channel_type\": \"memory\", \"connected",
               "\"channel_type\": \"switch\", \"connected",
               "line 4: switch channels are not imported"},
        Broken{"\"input_chunks\": 1", "\"input_chunks\": \"1\"",
               "line 3: \"input_chunks\" must be"}}) {
    expect_refused(broken(text, c), c.reason);
  }
  expect_refused(text.substr(0, text.size() / 2), "^line [0-9]+: ");
  PlanText twice = packets(2);
  twice.add(0, op("re", here('o', 0) + ", " + here('i', 0), here('o', 0)));
  expect_refused(twice.text(), "adds the contribution of gpu 0 to block 0 twice");
  PlanText unwritten = packets(2);
  unwritten.add(0, op("copy", here('s', 0), here('o', 0)));
  expect_refused(unwritten.text(), "reads chunk 0 of scratch on gpu 0, which nobody wrote");
}

}  // namespace
}  // namespace niccolite::importers
