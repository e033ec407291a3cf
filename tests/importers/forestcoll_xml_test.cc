// ForestColl's trees: our own are read and proved in each direction, and broken ones are refused
// with the reason and its line.
#include "importers/forestcoll_xml.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "importers/import.h"
#include "schedule/check.h"
#include "tests/importers/broken.h"

namespace niccolite::importers {
namespace {

using schedule::Collective;
using testing::HasSubstr;

std::string name(int rank) { return fmt::format("(0, 'GPU', {})", rank); }

/// For each rank a chain to the next ranks, and a tree whose root sends to its neighbours: three
/// chunks of a rank.
std::string trees(int n) {
  std::string text = "<Algo nchunkspernode=\"3\">\n";
  const auto send = [&](int from, int to) {
    text += fmt::format("    <send src=\"{}\" dst=\"{}\" path=\"{},(0, 'SWITCH', 0),{}\"/>\n",
                        name(from % n), name(to % n), name(from % n), name(to % n));
  };
  for (int root = n - 1; root >= 0; --root) {
    text += fmt::format("  <tree root=\"{}\" index=\"0\" nchunks=\"2\" height=\"{}\">\n",
                        name(root), n - 1);
    for (int hop = 0; hop + 1 < n; ++hop) send(root + hop, root + hop + 1);
    text += fmt::format("  </tree>\n  <tree root=\"{}\" index=\"1\" nchunks=\"1\" height=\"2\">\n",
                        name(root));
    if (n > 3) send(root + n - 1, root + 2);  // before the root has sent to its sender
    for (int hop = 3; hop < n - 1; ++hop) send(root + 1, root + hop);
    send(root, root + 1);
    if (n > 2) send(root, root + n - 1);
    text += "  </tree>\n";
  }
  return text + "</Algo>\n";
}

TEST(ForestcollXml, TreesGatherScatterAndReduce) {
  for (const int n : {2, 4, 5, 12})
    for (const Collective collective :
         {Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce}) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", n, name_of(collective)));
      const std::string text = trees(n);
      ASSERT_TRUE(is_foreign(text));
      EXPECT_TRUE(says_no_collective(text));
      const Result<Foreign> read = import(text, collective);
      ASSERT_TRUE(read.is_ok()) << read.status().message();
      const schedule::Schedule& schedule = read.value().file.schedule;
      EXPECT_EQ(schedule.collective, collective);
      EXPECT_EQ(schedule.nranks, n);
      const Result<int> depth = schedule::least_depth(schedule);
      ASSERT_TRUE(depth.is_ok()) << depth.status().message();
      EXPECT_LE(depth.value(), 2);
    }
  EXPECT_EQ(import(trees(3)).value().file.schedule.collective, Collective::AllGather);
}

TEST(ForestcollXml, BrokenTreesAreRefusedWithTheirLine) {
  const std::string text = trees(3);
  for (const Broken& c :
       {Broken{"  <tree", "  <bush/><tree", "line 2: <bush> is not known in <Algo>"},
        Broken{"<send", "<put", "line 3: <put> is not known in <tree>"},
        Broken{"nchunks=\"2\"", "nchunks=\"0\"", "line 2: nchunks is \"0\", and must be"},
        Broken{"nchunks=\"2\"", "nchunks=\"1\"", "line 1: the trees of gpu 2 have 2 chunks, not 3"},
        Broken{"nchunks=\"2\"", "nchunks=\"4\"", "line 2: the trees of gpu 2 have more than 3"},
        Broken{"src=\"(0, 'GPU', 2)\"", "src=\"(9, 'GPU', 9)\"",
               "line 3: src is \"(9, 'GPU', 9)\", which is no root of a tree"},
        Broken{"dst=\"(0, 'GPU', 0)\"", "dst=\"(0, 'GPU', 2)\"",
               "line 2: the tree reaches gpu 2 twice"},
        Broken{"src=\"(0, 'GPU', 2)\" dst=\"(0, 'GPU', 0)\"",
               "src=\"(0, 'GPU', 1)\" dst=\"(0, 'GPU', 0)\"",
               "line 2: the tree reaches 1 of 3 gpus by 2 sends"},
        Broken{"</tree>", "", "line "}}) {
    const Result<Foreign> read = import(broken(text, c));
    ASSERT_FALSE(read.is_ok()) << c.reason;
    EXPECT_THAT(read.status().message(), HasSubstr(c.reason));
  }
  const Result<Foreign> broadcast = import(text, Collective::Broadcast);
  ASSERT_FALSE(broadcast.is_ok());
  EXPECT_THAT(broadcast.status().message(), HasSubstr("not broadcast"));
}

}  // namespace
}  // namespace niccolite::importers
