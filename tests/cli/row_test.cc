#include "cli/perf/row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/perf/row_json.h"

namespace niccolite::perf {
namespace {

Row example() {
  return {
      .collective = "all_reduce",
      .bytes = 4096,
      .count = 1024,
      .type = "float",
      .operation = "sum",
      .root = 2,
      .nranks = 4,
      .out_of_place = PlaceResult{.ours = {.microseconds = 2,
                                           .samples = {2, 2.5, 1.5},
                                           .wrong = 3,
                                           .differing_ranks = 1,
                                           .alone = Alone{.operation_us = 1.5, .product_us = 1.25},
                                           .allocation_us = 70,
                                           .first_us = {9, 2}},
                                  .other = Measurement{.microseconds = 5,
                                                       .samples = {5},
                                                       .wrong = std::nullopt,
                                                       .differing_ranks = std::nullopt,
                                                       .alone = std::nullopt}},
      .in_place = std::nullopt};
}

double busbw(const char* collective, size_t bytes, double microseconds, int nranks) {
  Row row = example();
  row.collective = collective;
  row.bytes = bytes;
  row.nranks = nranks;
  return bus_bandwidth(row, microseconds);
}

TEST(Bandwidth, IsThatOfNcclTests) {
  struct Case {
    const char* collective;
    double of_two, of_four;  // bus bandwidth of 1 MB in 10 us, which is 100 GB/s
  };
  for (const Case& c :
       {Case{"all_reduce", 100, 150}, Case{"all_gather", 50, 75}, Case{"reduce_scatter", 50, 75},
        Case{"broadcast", 100, 100}, Case{"reduce", 100, 100}, Case{"alltoall", 50, 75},
        Case{"gather", 50, 75}, Case{"scatter", 50, 75}, Case{"sendrecv", 100, 100},
        Case{"hypercube", 50, 75}}) {
    SCOPED_TRACE(c.collective);
    EXPECT_DOUBLE_EQ(busbw(c.collective, 1'000'000, 10, 2), c.of_two);
    EXPECT_DOUBLE_EQ(busbw(c.collective, 1'000'000, 10, 4), c.of_four);
    Row row = example();
    row.collective = c.collective;
    row.bytes = 1'000'000;
    const bool is_hypercube = std::string(c.collective) == "hypercube";
    EXPECT_DOUBLE_EQ(algorithm_bandwidth(row, 10), is_hypercube ? 75 : 100);
  }
  EXPECT_DOUBLE_EQ(busbw("all_reduce", 1'000'000, 10, 1), 0);
  EXPECT_DOUBLE_EQ(busbw("all_reduce", 8, 0, 4), 0);
  EXPECT_DOUBLE_EQ(ratio(*example().out_of_place), 2.5);
}

TEST(RowJson, HasTheFieldsThatScriptsRead) {
  const nlohmann::json json = to_json(example());
  EXPECT_EQ(json.at("collective"), "all_reduce");
  EXPECT_EQ(json.at("root"), 2);
  EXPECT_EQ(json.at("bytes"), 4096);
  EXPECT_EQ(json.at("count"), 1024);
  EXPECT_EQ(json.at("type"), "float");
  EXPECT_EQ(json.at("op"), "sum");
  EXPECT_EQ(json.at("nranks"), 4);
  EXPECT_EQ(json.at("out_of_place").at("time_us"), 2);
  EXPECT_EQ(json.at("out_of_place").at("wrong"), 3);
  EXPECT_DOUBLE_EQ(json.at("out_of_place").at("busbw_gbs"), 4096 / 2.0 / 1e3 * 1.5);
  EXPECT_EQ(json.at("out_of_place").at("vs").at("time_us"), 5);
  EXPECT_TRUE(json.at("out_of_place").at("vs").at("wrong").is_null());
  EXPECT_DOUBLE_EQ(json.at("out_of_place").at("ratio"), 2.5);
  EXPECT_EQ(json.at("out_of_place").at("allocation_us"), 70);
  EXPECT_EQ(json.at("out_of_place").at("first_us"), nlohmann::json::array({9, 2}));
  EXPECT_TRUE(json.at("out_of_place").at("vs").at("allocation_us").is_null());
  EXPECT_TRUE(json.at("in_place").is_null());
}

TEST(RowJson, ComesBackAsItWent) {
  const nlohmann::json json = to_json(example());
  EXPECT_EQ(to_json(row_from_json(json)), json);
  const Start start = {.is_virtual = true,
                       .driver_version = 13000,
                       .library = {"/lib/libnccl.so.2", "2.30.7"},
                       .other = LibraryName{"/other/libnccl.so.2", "2.28.9"},
                       .participants = {{.rank = 0,
                                         .process_id = 9,
                                         .device = 1,
                                         .host = "a12",
                                         .bus_id = "0000:01:00.0",
                                         .device_name = "Virtual GPU"}},
                       .skipped = {"hypercube: 3 ranks"}};
  EXPECT_EQ(to_json(start_from_json(to_json(start))), to_json(start));
  const MemoryUse use = {.after_init_bytes = 1, .after_run_bytes = int64_t{3} << 30};
  EXPECT_EQ(to_json(memory_use_from_json(to_json(use))), to_json(use));
}

}  // namespace
}  // namespace niccolite::perf
