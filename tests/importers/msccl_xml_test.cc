// MSCCL's XML: our own small programs are read, proved and drawn from, and broken ones are refused
// with the reason and its line.
#include "importers/msccl_xml.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/check.h"
#include "schedule/file.h"

namespace niccolite::importers {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string head(const char* collective, int ranks, int chunks, bool is_in_place) {
  return fmt::format(
      "<algo name=\"Our {}\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"{}\" ngpus=\"{}\" "
      "coll=\"{}\" inplace=\"{}\">\n",
      collective, chunks, ranks, collective, int{is_in_place});
}
std::string gpu(int id, int inputs, int outputs, int scratch) {
  return fmt::format(" <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n", id,
                     inputs, outputs, scratch);
}
std::string tb(int id, int send, int receive, int channel) {
  return fmt::format("  <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", id, send, receive,
                     channel);
}
struct Line {
  int s;
  const char* type;
  char from;
  int from_chunk;
  char to;
  int to_chunk;
  int count = 1;
  int depid = -1;
  int deps = -1;
};
std::string step(const Line& line) {
  return fmt::format(
      "   <step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" "
      "cnt=\"{}\" depid=\"{}\" deps=\"{}\" hasdep=\"0\"/>\n",
      line.s, line.type, line.from, line.from_chunk, line.to, line.to_chunk, line.count, line.depid,
      line.deps);
}
constexpr const char* kEndTb = "  </tb>\n";
constexpr const char* kEndGpu = " </gpu>\n";
constexpr const char* kEnd = "</algo>\n";

/// In place; `channels` rings side by side, each over its own chunks.
std::string ring_all_reduce(int n, int channels) {
  std::string text = head("allreduce", n, n * channels, true);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, n * channels, 0, 0);
    for (int c = 0; c < channels; ++c) {
      text += tb(c, (rank + 1) % n, (rank + n - 1) % n, c);
      const auto chunk = [&](int back) { return c * n + ((rank - back) % n + n) % n; };
      int s = 0;
      text += step({s++, "s", 'i', chunk(0), 'i', chunk(0)});
      for (int back = 1; back < n - 1; ++back)
        text += step({s++, "rrs", 'i', chunk(back), 'i', chunk(back)});
      text += step({s++, "rrcs", 'i', chunk(n - 1), 'i', chunk(n - 1)});
      for (int back = n; back < 2 * n - 2; ++back)
        text += step({s++, "rcs", 'i', chunk(back), 'i', chunk(back)});
      text += step({s++, "r", 'i', chunk(2 * n - 2), 'i', chunk(2 * n - 2)});
      text += kEndTb;
    }
    text += kEndGpu;
  }
  return text + kEnd;
}

/// All send all to scratch of all; another thread block adds. `chunks` of the buffer at once.
std::string all_pairs(int n, int chunks, bool waits = true) {
  std::string text = head("allreduce", n, chunks, true);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, chunks, 0, chunks * (n - 1));
    for (int i = 0; i < n - 1; ++i) {
      const int peer = (rank + 1 + i) % n;
      text += tb(i, peer, peer, 0) + step({0, "s", 'i', 0, 's', 0, chunks}) +
              step({1, "r", 'i', 0, 's', i * chunks, chunks}) + kEndTb;
    }
    text += tb(n - 1, -1, -1, 0);
    int s = 0;
    for (int i = 0; i < n - 1 && waits; ++i) text += step({s++, "nop", 'i', 0, 'i', 0, 0, i, 1});
    for (int i = 0; i < n - 1; ++i) text += step({s++, "re", 's', i * chunks, 'i', 0, chunks});
    text += std::string(kEndTb) + kEndGpu;
  }
  return text + kEnd;
}

/// Every rank sends its `chunks` to every other.
std::string all_gather(int n, int chunks, bool is_in_place) {
  std::string text = head("allgather", n, n * chunks, is_in_place);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, chunks, n * chunks, 0);
    for (int i = 0; i < n - 1; ++i) {
      const int peer = (rank + 1 + i) % n;
      text += tb(i, peer, peer, 0) + step({0, "s", 'i', 0, 'o', rank * chunks, chunks}) +
              step({1, "r", 'i', 0, 'o', peer * chunks, chunks}) + kEndTb;
    }
    if (!is_in_place)
      text += tb(n - 1, -1, -1, 0) + step({0, "cpy", 'i', 0, 'o', rank * chunks, chunks}) + kEndTb;
    text += kEndGpu;
  }
  return text + kEnd;
}

/// Block b goes to rank b; it passes all others on the way, and is added to.
std::string ring_reduce_scatter(int n, int chunks) {
  std::string text = head("reducescatter", n, n * chunks, false);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, n * chunks, chunks, 0) + tb(0, (rank + 1) % n, (rank + n - 1) % n, 0);
    int s = 0;
    const auto chunk = [&](int back) { return ((rank - back) % n + n) % n * chunks; };
    text += step({s++, "s", 'i', chunk(1), 'i', 0, chunks});
    for (int back = 2; back < n; ++back)
      text += step({s++, "rrs", 'i', chunk(back), 'i', 0, chunks});
    text += step({s++, "rrc", 'i', chunk(n), 'o', 0, chunks});
    text += std::string(kEndTb) + kEndGpu;
  }
  return text + kEnd;
}

std::string all_to_all(int n, int chunks) {
  std::string text = head("alltoall", n, n * chunks, false);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, n * chunks, n * chunks, 0);
    for (int i = 0; i < n - 1; ++i) {
      const int peer = (rank + 1 + i) % n;
      text += tb(i, peer, peer, 0) + step({0, "s", 'i', peer * chunks, 'o', 0, chunks}) +
              step({1, "r", 'i', 0, 'o', peer * chunks, chunks}) + kEndTb;
    }
    text += tb(n - 1, -1, -1, 0) + step({0, "cpy", 'i', rank * chunks, 'o', rank * chunks, chunks});
    text += std::string(kEndTb) + kEndGpu;
  }
  return text + kEnd;
}

std::string chain_broadcast(int n, int chunks) {
  std::string text = head("broadcast", n, chunks, false);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, chunks, chunks, 0);
    text += tb(0, rank + 1 < n ? rank + 1 : -1, rank - 1, 0);
    if (rank == 0)
      text += step({0, "s", 'i', 0, 'o', 0, chunks}) + step({1, "cpy", 'i', 0, 'o', 0, chunks});
    else
      text += step({0, rank + 1 < n ? "rcs" : "r", 'i', 0, 'o', 0, chunks});
    text += std::string(kEndTb) + kEndGpu;
  }
  return text + kEnd;
}

Result<Imported> import(const std::string& text) {
  const Program program = TRY(read_msccl_xml(text));
  return to_schedule(program);
}

Schedule proved(const std::string& text) {
  Result<Imported> imported = import(text);
  EXPECT_TRUE(imported.is_ok()) << imported.status().message() << "\n" << text;
  if (!imported.is_ok()) return {};
  const Result<int> depth = schedule::least_depth(imported->file.schedule);
  EXPECT_TRUE(depth.is_ok()) << depth.status().message() << "\n"
                             << to_file(imported->file.schedule);
  return imported->file.schedule;
}

TEST(MscclXml, IsReadAndProved) {
  for (int n = 2; n <= 9; ++n) {
    SCOPED_TRACE(n);
    for (const int chunks : {1, 2, 3}) {
      const Schedule ring = proved(ring_all_reduce(n, chunks));
      EXPECT_EQ(ring.algorithm, "our_allreduce");
      EXPECT_EQ(ring.ranks[0][0].workers.size(), static_cast<size_t>(chunks))
          << "rings of different chunks stay side by side";
      proved(all_pairs(n, chunks));
      EXPECT_EQ(proved(all_gather(n, chunks, false)).ranks[0].size(), static_cast<size_t>(chunks));
      proved(all_gather(n, chunks, true));
      proved(ring_reduce_scatter(n, chunks));
      proved(all_to_all(n, chunks));
      proved(chain_broadcast(n, chunks));
    }
  }
}

// All operands of an element meet where they are received.
TEST(MscclXml, AddsWhatIsReceivedWithoutAWayThroughScratch) {
  const Schedule pairs = proved(all_pairs(2, 1));
  EXPECT_EQ(pairs.scratch_blocks, 0);
  EXPECT_FALSE(pairs.partial_sums) << "one instruction adds both contributions";
}

TEST(MscclXml, SaysForWhichSizesItIs) {
  std::string text = all_gather(4, 1, true);
  text.insert(text.find(" coll="), " minBytes=\"4096\" maxBytes=\"65536\"");
  Result<Imported> imported = import(text);
  ASSERT_TRUE(imported.is_ok()) << imported.status().message();
  EXPECT_EQ(imported->file.use, (schedule::Use{.min_bytes = 1024, .max_bytes = 16384}))
      << "of one rank's block, where MSCCL counts all";
}

/// A binary tree of ranks for each part of the buffer, in which rank 0's goes to all.
std::string tree_broadcast(int n, int trees) {
  std::string text = head("broadcast", n, trees, true);
  for (int rank = 0; rank < n; ++rank) {
    text += gpu(rank, trees, trees, 0);
    const int left = 2 * rank + 1, right = 2 * rank + 2;
    for (int tree = 0; tree < trees; ++tree) {
      const char* const first = rank == 0 ? "s" : left < n ? "rcs" : "r";
      text += tb(2 * tree, left < n ? left : -1, rank == 0 ? -1 : (rank - 1) / 2, tree) +
              step({0, first, 'i', tree, 'i', tree}) + kEndTb;
      if (right < n)
        text += tb(2 * tree + 1, right, -1, tree) +
                step({0, "s", 'i', tree, 'i', tree, 1, 2 * tree, 0}) + kEndTb;
    }
    text += kEndGpu;
  }
  return text + kEnd;
}

TEST(MscclXml, MayBeLarge) {
  proved(tree_broadcast(7, 3));
  const Schedule large = proved(tree_broadcast(64, 64));
  EXPECT_EQ(large.nblocks, 64);
  EXPECT_EQ(large.connections.size(), 63u * 64u);
}

std::string replaced(std::string text, const std::string& old, const std::string& replacement) {
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), replacement);
}

/// Each waits for the one before.
std::string every_rank_receives_first(int n) {
  std::string text = head("allgather", n, n, false);
  for (int rank = 0; rank < n; ++rank)
    text += gpu(rank, 1, n, 0) + tb(0, (rank + 1) % n, (rank + n - 1) % n, 0) +
            step({0, "r", 'i', 0, 'o', (rank + n - 1) % n}) + step({1, "s", 'i', 0, 'o', rank}) +
            kEndTb + kEndGpu;
  return text + kEnd;
}

TEST(MscclXml, IsRefusedWithTheReason) {
  const std::string ring = ring_all_reduce(3, 1);
  struct Case {
    std::string text;
    const char* message;  // a regular expression
  };
  for (const Case& c : {
           Case{"<algo", "line 1: "},
           Case{"<system/>", "line 1: <system> is no MSCCL algorithm"},
           Case{replaced(ring, "rrcs", "rrcx"), "line 6: the type of step \"rrcx\" is not known"},
           Case{replaced(ring, "coll=\"allreduce\"", "coll=\"custom\""),
                "coll is \"custom\"; those"},
           Case{replaced(ring, "ngpus=\"3\"", "ngpus=\"4\""), "gpu 3 of 4 is missing"},
           Case{replaced(ring, "ngpus=\"3\"", "ngpus=\"x\""), "ngpus is \"x\", and must be"},
           Case{replaced(ring, "<step s=\"1\"", "<step s=\"2\""),
                "step 2 stands where step 1 is due"},
           Case{replaced(ring, "srcoff=\"0\"", "srcoff=\"3\""), "srcoff is \"3\", and must be"},
           Case{replaced(ring, "recv=\"2\"", "recv=\"-1\""),
                "receives, and its tb has recv=\"-1\""},
           Case{replaced(ring, "depid=\"-1\" deps=\"-1\"", "depid=\"7\" deps=\"0\""),
                "waits for step 0 of tb 7, which there is not"},
           Case{replaced(all_gather(3, 1, false), "\"cpy\"", "\"re\""),
                "\"re\" reduces, and all_gather only moves data"},
           Case{replaced(all_gather(3, 1, false), "nchunksperloop=\"3\"", "nchunksperloop=\"4\""),
                "nchunksperloop is 4, which 3 ranks do not divide"},
           // Of the program:
           Case{
               every_rank_receives_first(3),
               "deadlock.*line 4 .gpu 0.: waits for a chunk from gpu 2; line 16 .gpu 2.*line 10 .* "
               "and so round to line 4"},
           Case{replaced(ring, "type=\"s\"", "type=\"r\""),
                "never ends: line 8 .gpu 0.: waits for a chunk from gpu 2, which nobody"},
           Case{replaced(ring, "type=\"rrs\"", "type=\"rcs\""), "contribution of gpu|block"},
           Case{all_pairs(3, 1, false), "race: on gpu 0 line [0-9]+ .*line [0-9]+ .*chunk"},
       }) {
    Result<Imported> imported = import(c.text);
    Status status;
    if (!imported.is_ok())
      status = std::move(imported).status();
    else  // what only the proof of the schedule finds
      status = schedule::least_depth(imported->file.schedule).status().copy();
    ASSERT_FALSE(status.is_ok()) << c.message << "\n" << c.text;
    EXPECT_THAT(status.message(), ContainsRegex(c.message));
  }
}

}  // namespace
}  // namespace niccolite::importers
