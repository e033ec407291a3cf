#include "cli/perf/options.h"

#include <gmock/gmock.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace niccolite::perf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Options> parse(const std::string& flags) {
  RawOptions raw;
  CLI::App app("perf");
  add_options(app, raw);
  app.parse(flags);
  return finish(raw);
}

TEST(Options, WithoutFlagsUseEveryGpuFrom8BytesTo64MiB) {
  const Result<Options> options = parse("");
  ASSERT_TRUE(options.is_ok()) << options.status().message();
  EXPECT_TRUE(options.value().wants_every_gpu());
  EXPECT_EQ(options.value().min_bytes, 8u);
  EXPECT_EQ(options.value().max_bytes, size_t{64} << 20);
  EXPECT_EQ(sizes_of(options.value()).size(), 24u);
  ASSERT_EQ(options.value().types.size(), 1u);
  EXPECT_STREQ(options.value().types[0]->name, "float");
  EXPECT_STREQ(options.value().operations[0]->name, "sum");
  ASSERT_EQ(options.value().collectives.size(), 1u);
  EXPECT_STREQ(options.value().collectives[0]->name, "all_reduce");
  EXPECT_EQ(options.value().root, 0);
  EXPECT_TRUE(options.value().in_place && options.value().out_of_place);
  EXPECT_EQ(options.value().rounds, 1);
}

TEST(Options, TakeTheFlagsOfNcclTests) {
  const Result<Options> result = parse(
      "all_reduce -b 1K -e 4K -i 1K -n 7 -w 3 -m 2 -t 2 -g 3 -d half -o max -c 4 -G 5 -p 1 -a 3 -J "
      "out.json -T 9");
  ASSERT_TRUE(result.is_ok()) << result.status().message();
  const Options& options = result.value();
  EXPECT_THAT(sizes_of(options), ElementsAre(1024, 2048, 3072, 4096));
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup_iterations, 3);
  EXPECT_EQ(options.aggregated, 2);
  EXPECT_EQ(options.nranks(), 6);
  EXPECT_STREQ(options.types[0]->name, "half");
  EXPECT_STREQ(options.operations[0]->name, "max");
  EXPECT_EQ(options.check_iterations, 4);
  EXPECT_EQ(options.graph_launches, 5);
  EXPECT_TRUE(options.parallel_init);
  EXPECT_EQ(options.average, Average::Most);
  EXPECT_EQ(options.json_path, "out.json");
  EXPECT_EQ(options.timeout_seconds, 9);
}

TEST(Options, CountRanksOverProcessesThreadsAndGpus) {
  const Result<Options> options = parse("--processes 4 -t 3 -g 2");
  ASSERT_TRUE(options.is_ok());
  EXPECT_EQ(options.value().nranks(), 24);
  EXPECT_EQ(parse("--processes 4").value().nranks(), 4);  // one thread, one GPU each
  EXPECT_EQ(parse("-g 4").value().nranks(), 4);
  EXPECT_EQ(parse("-t 4").value().nranks(), 4);
}

TEST(Options, NameRanksAndMachinesAsOtherSubcommandsDo) {
  const Options ranks = parse("--ranks 4").value();
  EXPECT_EQ(ranks.threads, 4);
  EXPECT_EQ(ranks.nranks(), 4);
  EXPECT_EQ(parse("--ranks 4 --processes 2").value().threads, 2);
  const Options machines = parse("--machines 2x3").value();
  EXPECT_EQ(machines.processes, 2);
  EXPECT_EQ(machines.nranks(), 6);
  EXPECT_TRUE(machines.apart);
}

TEST(Options, NameTheLimitOfPlots) {
  EXPECT_EQ(parse("--peak 392").value().limit_gbs, 392);
  const Options named = parse("--peak copy=39.5").value();
  EXPECT_EQ(named.limit_name, "copy");
  EXPECT_EQ(named.limit_gbs, 39.5);
}

TEST(Options, SelectTypesAndOperations) {
  const Result<Options> all = parse("-d all -o all");
  ASSERT_TRUE(all.is_ok());
  EXPECT_EQ(all.value().types.size(), 12u);
  EXPECT_EQ(all.value().operations.size(), 7u);
  const Result<Options> some = parse("-d fp8_e4m3,bf16,f8e5m2 -o sum,avg");
  ASSERT_TRUE(some.is_ok());
  ASSERT_EQ(some.value().types.size(), 3u);
  EXPECT_EQ(some.value().types[0]->id, ncclFloat8e4m3);
  EXPECT_EQ(some.value().types[1]->id, ncclBfloat16);
  EXPECT_EQ(some.value().operations[1]->id, ncclAvg);
}

TEST(Options, SelectCollectivesInEverySpelling) {
  const Result<Options> some = parse("reduce-scatter,ncclAlltoAll,AllGather,point_to_point -r -1");
  ASSERT_TRUE(some.is_ok()) << some.status().message();
  std::vector<std::string> names;
  for (const Collective* each : some.value().collectives) names.emplace_back(each->name);
  EXPECT_THAT(names, ElementsAre("reduce_scatter", "alltoall", "all_gather", "sendrecv"));
  EXPECT_EQ(some.value().root, -1);
  EXPECT_FALSE(some.value().is_every_collective);
}

TEST(Options, MeasureAllCollectivesAtFewSizesUnlessTold) {
  const Result<Options> all = parse("all");
  ASSERT_TRUE(all.is_ok()) << all.status().message();
  EXPECT_EQ(all.value().collectives.size(), collectives().size());
  EXPECT_TRUE(all.value().is_every_collective);
  EXPECT_THAT(sizes_of(all.value()), ElementsAre(1 << 10, 64 << 10, 4 << 20));
  EXPECT_EQ(describe_step(all.value()), "64(factor)");
  EXPECT_THAT(sizes_of(parse("all -f 1024").value()), ElementsAre(1 << 10, 1 << 20));
  EXPECT_THAT(sizes_of(parse("all -b 8 -e 16").value()), ElementsAre(8, 16));
  // Leaves out those that cannot, and says so.
  const Result<Options> some = parse("all --in-place -m 2");
  ASSERT_TRUE(some.is_ok()) << some.status().message();
  EXPECT_EQ(some.value().collectives.size(), 7u);
  EXPECT_THAT(some.value().skipped, ElementsAre(HasSubstr("alltoall"), HasSubstr("sendrecv"),
                                                HasSubstr("hypercube"), HasSubstr("alltoallv"),
                                                HasSubstr("messages_8"), HasSubstr("messages_32")));
}

TEST(Options, TakeOddShapesAndSeveralCommunicators) {
  const Result<Options> options = parse("--starts 0,1,3 --extra 1 --communicators 2");
  ASSERT_TRUE(options.is_ok()) << options.status().message();
  EXPECT_THAT(options.value().starts, ElementsAre(0, 1, 3));
  EXPECT_THAT(options.value().extras, ElementsAre(1));
  EXPECT_EQ(options.value().most_start(), 3u);
  EXPECT_EQ(options.value().communicators, 2);
  for (const char* flags : {"--starts -1", "--starts 1,", "--extra x", "--extra 5000",
                            "--communicators 0", "--communicators 9"}) {
    SCOPED_TRACE(flags);
    EXPECT_FALSE(parse(flags).is_ok());
  }
}

TEST(Options, TakeTheMemoryOfBuffers) {
  const Result<Options> plain = parse("");
  EXPECT_EQ(plain.value().allocator, Allocator::Malloc);
  EXPECT_EQ(plain.value().buffer_pairs, 1);
  for (const char* name :
       {"malloc", "nccl", "vmm", "vmm-private", "async", "pool", "managed", "host"}) {
    const Result<Options> options = parse(std::string("--buffers 8 --allocator ") + name);
    ASSERT_TRUE(options.is_ok()) << options.status().message();
    EXPECT_STREQ(name_of(options.value().allocator), name);
    EXPECT_EQ(options.value().buffer_pairs, 8);
  }
  EXPECT_TRUE(parse("--buffers new --first 3").value().has_fresh_buffers());
  EXPECT_EQ(parse("--buffers new --first 3").value().first_calls, 3);
}

TEST(Options, SelectPlaces) {
  EXPECT_FALSE(parse("--in-place").value().out_of_place);
  EXPECT_FALSE(parse("--out-of-place").value().in_place);
  EXPECT_TRUE(parse("--in-place --out-of-place").value().in_place);
}

TEST(Options, MeasureFiveRoundsAgainstASecondLibrary) {
  EXPECT_EQ(parse("--vs other.so").value().rounds, 5);
  EXPECT_EQ(parse("--vs other.so --rounds 3").value().rounds, 3);
}

TEST(Options, ThatCannotBeAreRefusedByName) {
  struct Case {
    const char* flags;
    const char* message;
  };
  for (const Case& c : {Case{"-b 4K -e 1K", "--minbytes 4096"},
                        Case{"-f 1", "--stepfactor"},
                        Case{"-d long", "\"long\""},
                        Case{"-d flaot", "did you mean float?"},
                        Case{"all_gahter", "did you mean all_gather?"},
                        Case{"--ranks 3 --processes 2", "--ranks: 3 ranks cannot be shared"},
                        Case{"--machines 3,1", "write 2x3"},
                        Case{"--machines two", "--machines: \"two\""},
                        Case{"--peak fast", "--peak: \"fast\""},
                        Case{"-o mean", "\"mean\""},
                        Case{"-n 0", "--iters"},
                        Case{"-a 7", "--average"},
                        Case{"-b 1Q", "--minbytes"},
                        Case{"-d float,", "--datatype"},
                        Case{"-c -1", "--check"},
                        Case{"--beside -1", "--beside"},
                        Case{"--beside 64 -m 2", "--beside"},
                        Case{"-G 2 -z 1", "--cudagraph"},
                        Case{"-t -1", "--nthreads"},
                        Case{"-t 0", "--nthreads: 0 is less than 1"},
                        Case{"-g 0", "--ngpus: 0 is less than 1"},
                        Case{"-t 2 -g 0", "--ngpus"},
                        Case{"--processes 0", "--processes"},
                        Case{"all_shuffle", "\"all_shuffle\""},
                        Case{"all_gather,", "\"\""},
                        Case{"-r -2", "--root"},
                        Case{"alltoall --in-place", "alltoall has no in-place form"},
                        Case{"hypercube -m 2", "--agg_iters"},
                        Case{"--allocator heap", "\"heap\" is none of malloc, nccl, vmm"},
                        Case{"--buffers 0", "\"0\" is neither new"},
                        Case{"--buffers 1x", "\"1x\" is neither new"},
                        Case{"--buffers 8 -n 3 -m 2", "6 operations"},
                        Case{"--buffers new -G 2", "--cudagraph"},
                        Case{"--buffers new -m 2", "--agg_iters"},
                        Case{"--buffers new -R 1", "--local_register"},
                        Case{"--buffers new --memory", "--memory"},
                        Case{"--first 2 -R 2", "--local_register"},
                        Case{"--device fast", "\"fast\" is none of lsa, multimem, gin"},
                        Case{"--device lsa --buffers new", "--device"},
                        Case{"--device lsa --first 2", "--device"},
                        Case{"--device lsa -R 1", "--device"},
                        Case{"--device lsa --send-recv", "--device"},
                        Case{"--device lsa --algorithm ring", "--device"},
                        Case{"broadcast --device lsa", "no kernel for broadcast"},
                        Case{"--device gin", "no kernel for all_reduce"},
                        Case{"--device lsa -o max", "knows sum, not max"},
                        Case{"--device lsa -o mulsum", "knows sum, not mulsum"},
                        Case{"--device lsa -d f8e5m2", "does not add f8e5m2"},
                        Case{"--first -1", "--first"}}) {
    SCOPED_TRACE(c.flags);
    const Result<Options> options = parse(c.flags);
    ASSERT_FALSE(options.is_ok());
    EXPECT_THAT(options.status().message(), HasSubstr(c.message));
  }
}

TEST(Sizes, CanBeNamed) {
  const Result<Options> options = parse("--sizes 1003,4K,7");
  ASSERT_TRUE(options.is_ok()) << options.status().message();
  EXPECT_THAT(sizes_of(options.value()), ElementsAre(1003, 4096, 7));
  EXPECT_EQ(options.value().max_bytes, 4096u);  // what the buffers must hold
  EXPECT_FALSE(parse("--sizes 8,").is_ok());
}

TEST(Sizes, AreDescribedByTheStepThatIsTaken) {
  for (const auto& [flags, step] : {std::pair("", "2(factor)"),
                                    {"-f 1.5", "1.5(factor)"},
                                    {"-i 1K", "1024(bytes)"},
                                    {"--sizes 8,4K,7", "8,4096,7(sizes)"}}) {
    const Result<Options> options = parse(flags);
    ASSERT_TRUE(options.is_ok()) << options.status().message();
    EXPECT_EQ(describe_step(options.value()), step);
  }
}

TEST(Sizes, GrowEvenFromZeroAndByFactorsNearOne) {
  Options options;
  options.min_bytes = 0;
  options.max_bytes = 9;
  EXPECT_THAT(sizes_of(options), ElementsAre(0, 1, 2, 4, 8));
  options.min_bytes = 2;
  options.max_bytes = 5;
  options.step_factor = 1.01;
  EXPECT_THAT(sizes_of(options), ElementsAre(2, 3, 4, 5));
}

}  // namespace
}  // namespace niccolite::perf
