#include "planner/choice/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "planner/choice/channel_counts.h"
#include "planner/choice/list_choice.h"
#include "planner/choice/message_choice.h"
#include "planner/prices/price.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

constexpr size_t kMostBytes = size_t{2} << 30;
/// A choice of fewer CTAs may be longer by this, and no more (choice.h).
constexpr double kHardlyLess = 0.95;

constexpr MachineClass kMachines[] = {MachineClass::Cuda,        MachineClass::CudaSlotsOfTwo,
                                      MachineClass::CudaSlots,   MachineClass::CudaHostMemory,
                                      MachineClass::CudaSockets, MachineClass::Sockets,
                                      MachineClass::Virtual};

Settings two_gpus() {
  Settings settings = make_settings(gpu::Kind::Cuda, 2, {}).value();
  set_reach(settings, true);
  return settings;
}

/// Calls `check` for every collective on machines of all classes.
void for_each(const Limits& limits,
              const std::function<void(const Settings& settings, Collective collective)>& check) {
  for (const MachineClass machine : kMachines) {
    int checked = 0;
    for (const int nranks : {2, 3, 4, 8, 16, 200})
      for (int c = 0; c < schedule::kCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        const bool spans_machines =
            machine == MachineClass::Sockets || machine == MachineClass::CudaSockets;
        const gpu::Kind kind = machine == MachineClass::Virtual || machine == MachineClass::Sockets
                                   ? gpu::Kind::Virtual
                                   : gpu::Kind::Cuda;
        const bool reaches_users =
            machine == MachineClass::Virtual || machine == MachineClass::Cuda;
        Settings settings = make_settings(kind, nranks, limits).value();
        set_reach(settings, reaches_users);
        if (spans_machines) span_machines(settings, {});
        settings.shares_host = machine == MachineClass::CudaHostMemory;
        if (class_of(settings) != machine) continue;  // which has other numbers of ranks
        SCOPED_TRACE(testing::Message()
                     << function_name(collective) << " over " << nranks << " ranks, "
                     << (kind == gpu::Kind::Virtual ? "virtual" : "CUDA")
                     << (spans_machines         ? " joined by the network"
                         : settings.shares_host ? " joined by host memory"
                         : reaches_users        ? ""
                                                : " through slots"));
        check(settings, collective);
        ++checked;
      }
    EXPECT_GT(checked, 0) << "nothing is of machine class " << static_cast<int>(machine);
  }
}

TEST(Model, TimesOfEveryVariantGrowWithTheSize) {
  for_each({}, [](const Settings& settings, Collective collective) {
    for (const Choice& variant : candidates(settings, collective, kMostBytes)) {
      const Price price = Price::of(settings, *variant.form, variant.protocol);
      double last = 0;
      for (size_t bytes = 1; bytes <= kMostBytes; bytes += bytes / 3 + 1) {
        const double time = price.time_of(settings, {collective, settings.nranks, bytes}, variant);
        ASSERT_GE(time, last * 0.999999) << describe(variant) << " of " << bytes;
        last = time;
      }
    }
  });
}

TEST(Model, KnowsEveryVariantOfTheTunings) {
  for (const MachineClass machine : kMachines)
    for (const CostLine& line : tuning_of(machine, "").costs()) {
      ASSERT_NE(line.form, nullptr);
      const Cost& cost = line.cost;
      EXPECT_GT(cost.fixed, 0);
      EXPECT_GT(std::min({cost.link_two_ranks, cost.link_more_ranks, cost.channel_gigabytes}), 0);
      EXPECT_GE(std::min({cost.step, cost.channel, cost.round, cost.fill, cost.overlap}), 0);
      EXPECT_LE(cost.overlap, 1);
    }
}

TEST(Model, MeasuredVariantsDecideWhereThereAreAny) {
  for_each({}, [](const Settings& settings, Collective collective) {
    const std::vector<Choice> choices = candidates(settings, collective, 1000);
    ASSERT_FALSE(choices.empty());
    const bool is_fitted = Price::of(settings, *choices[0].form, choices[0].protocol).is_fitted();
    if (class_of(settings) == MachineClass::Sockets) {
      EXPECT_EQ(is_fitted, collective == Collective::PointToPoint);
    } else if (settings.nranks <= 8) {
      for (const Choice& choice : choices)
        EXPECT_TRUE(Price::of(settings, *choice.form, choice.protocol).is_fitted());
    }
  });
}

// What was never measured is not chosen.
TEST(Choice, CutsPublishedChunksOfLargeBuffersAlone) {
  int published = 0;
  for_each({}, [&](const Settings& settings, Collective collective) {
    for (size_t bytes = 1; bytes <= kMostBytes; bytes += bytes / 3 + 1) {
      const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
      if (buffer_bytes(work) >= kLeastPublishedInParts) break;
      for (const Choice& choice : candidates(settings, collective, bytes)) {
        if (!publishes_chunks(choice.protocol)) continue;
        ASSERT_EQ(choice.parts, 1) << bytes;
        ++published;
      }
    }
  });
  EXPECT_GT(published, 0);
}

TEST(Choice, IsPossibleWithTheChannelsThatConnectionsHave) {
  for_each({}, [&](const Settings& settings, Collective collective) {
    for (size_t bytes = 1; bytes <= kMostBytes; bytes = bytes * 3 + 1) {
      const Choice choice = choose(settings, collective, bytes).value();
      ASSERT_TRUE(is_possible(settings.machine, settings.nranks, *choice.form, choice.protocol,
                              machines_in(settings)));
      ASSERT_GE(choice.channels, 1);
      ASSERT_LE(choice.channels, most_channels(settings, choice.protocol));
      ASSERT_GT(choice.microseconds, 0);
    }
  });
}

TEST(Choice, TakesMoreThanTheUsualCtasOnlyWhereThatSavesTime) {
  int wide = 0, narrow = 0;
  for_each({}, [&](const Settings& settings, Collective collective) {
    for (size_t bytes = 1; bytes <= kMostBytes; bytes = bytes * 3 + 1) {
      const std::vector<Choice> all = candidates(settings, collective, bytes);
      const Choice choice = choose(settings, collective, bytes).value();
      if (choice.channels <= kUsualCtas) {
        // Is there a wider one that is not faster by enough?
        narrow += std::ranges::any_of(all, [&](const Choice& other) {
          return other.channels > kUsualCtas && other.microseconds < choice.microseconds;
        });
        continue;
      }
      ++wide;
      for (const Choice& other : all) {
        if (other.channels <= kUsualCtas) {
          ASSERT_LT(choice.microseconds, other.microseconds) << bytes;
        }
      }
    }
  });
  EXPECT_GT(wide, 0);
  EXPECT_GT(narrow, 0);
}

// A CTA divides bytes more slowly than links carry them.
TEST(Choice, GivesAveragesOfBytesNoFewerChannelsAndSomewhereAll) {
  int widened = 0;
  for_each({}, [&](const Settings& settings, Collective collective) {
    const Choice choice = choose(settings, collective, 64 << 20).value();
    const auto channels = [&](const Settings& of, executor::DataType type, Operation operation) {
      return channels_for_arithmetic(of,
                                     {.collective = collective,
                                      .count = 64 << 20,
                                      .type = type,
                                      .op = {.operation = operation}},
                                     choice);
    };
    EXPECT_EQ(channels(settings, executor::DataType::Int8, Operation::Sum), choice.channels);
    EXPECT_EQ(channels(settings, executor::DataType::Bfloat16, Operation::Average),
              choice.channels);
    Settings efficient = settings;
    efficient.policy = CtaPolicy::Efficiency;
    const int most = most_channels(settings, choice.protocol);
    for (const auto type : {executor::DataType::Int8, executor::DataType::Uint8}) {
      const int of_average = channels(settings, type, Operation::Average);
      EXPECT_TRUE(of_average == choice.channels || of_average == most) << of_average;
      if (!schedule::reduces(collective)) {
        EXPECT_EQ(of_average, choice.channels);
      }
      EXPECT_EQ(channels(efficient, type, Operation::Average), choice.channels);
      widened += of_average > choice.channels;
    }
  });
  EXPECT_GT(widened, 0);
}

// Odd starts gain more by it than the aligned buffers that the model knows.
TEST(Choice, GivesScattersOfAMegabyteAllChannelsOfLines) {
  const Settings settings = two_gpus();
  const Choice choice = choose(settings, Collective::Scatter, 500'000).value();
  EXPECT_EQ(choice.protocol, Protocol::LL128);
  EXPECT_EQ(choice.channels, most_channels(settings, Protocol::LL128));
  Settings efficient = settings;
  efficient.policy = CtaPolicy::Efficiency;
  EXPECT_LT(choose(efficient, Collective::Scatter, 500'000).value().channels, choice.channels);
}

// Between two ranks by LL, where more CTAs would only take longer.
TEST(Choice, OfFewBytesByWordsHasFewChannelsAndOfMoreBytesNoFewer) {
  const Settings settings = two_gpus();
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto counts_for = [&](size_t bytes) {
      return channel_counts(
          settings, Protocol::LL,
          {.collective = static_cast<Collective>(c), .nranks = settings.nranks, .bytes = bytes});
    };
    EXPECT_EQ(counts_for(1), std::vector{settings.min_channels});
    std::vector<int> last = counts_for(1);
    for (size_t bytes = 2; bytes <= kMostBytes; bytes *= 2) {
      const std::vector<int> counts = counts_for(bytes);
      ASSERT_TRUE(std::ranges::includes(counts, last)) << bytes;
      last = counts;
    }
    EXPECT_EQ(last, channel_counts(settings, Protocol::LL));
    EXPECT_GT(last.size(), 1u);
  }
}

// Both ends know the length of a message, and not how the other's buffer is aligned.
TEST(Choice, GivesLongMessagesOfOddLengthsNoFewerChannelsAndSomewhereMore) {
  int more = 0;
  for_each({}, [&](const Settings& settings, Collective collective) {
    if (collective != Collective::PointToPoint) return;
    const int most = most_channels(settings, Protocol::Simple);
    if (most == 0) return;
    Settings efficient = settings;
    efficient.policy = CtaPolicy::Efficiency;
    for (const size_t bytes : {size_t{4} << 20, size_t{64} << 20}) {
      const Choice even = choose_for_message(settings, Protocol::Simple, bytes);
      const Choice odd = choose_for_message(settings, Protocol::Simple, bytes + 2);
      EXPECT_LE(odd.channels, most);
      const int of_odd = channels_for_alignment(settings, bytes + 2, even);
      EXPECT_GE(of_odd, even.channels);
      EXPECT_EQ(channels_for_alignment(settings, bytes, even), even.channels);
      EXPECT_EQ(channels_for_alignment(efficient, bytes + 2, even), even.channels);
      if (of_odd > even.channels) {
        EXPECT_GE(odd.channels, of_odd);
        ++more;
      }
    }
  });
  EXPECT_GT(more, 0);
}

// Threads move them, each CTA as much as it can.
TEST(Choice, GivesUnevenBlocksOnGpusAsManyChannelsAsMayBe) {
  int uneven = 0, with_fewer = 0;
  for_each({}, [&](const Settings& settings, Collective collective) {
    const size_t even = size_t{64} << 20;
    const auto counts_for = [&](Collective of, size_t bytes) {
      return channel_counts(settings, Protocol::Simple,
                            {.collective = of, .nranks = settings.nranks, .bytes = bytes});
    };
    const std::vector<int> counts = counts_for(collective, even + 4);
    const bool has_uneven_blocks =
        settings.machine == gpu::Kind::Cuda && schedule::has_blocks_of_ranks(collective);
    if (!has_uneven_blocks) {
      EXPECT_EQ(counts, counts_for(collective, even));
      return;
    }
    ASSERT_EQ(counts.size(), 1u);
    // One link carries a gather and a scatter, which gain nothing from more.
    if (collective == Collective::Gather || collective == Collective::Scatter) {
      EXPECT_LE(counts[0], counts_for(Collective::AllGather, even + 4)[0]);
    } else {
      EXPECT_EQ(counts[0], most_channels(settings, Protocol::Simple));
    }
    const Choice choice = choose(settings, collective, even).value();
    uneven += choose(settings, collective, even + 4).value().channels == counts[0];
    with_fewer += choice.protocol == Protocol::Simple && choice.channels < counts[0];
  });
  EXPECT_GT(uneven, 0);
  EXPECT_GT(with_fewer, 0);  // else the model would take all of them anyway
}

TEST(Choice, ObeysTheLimitsOfCtas) {
  for_each({.min_ctas = 5, .max_ctas = 7}, [](const Settings& settings, Collective collective) {
    for (size_t bytes = 1; bytes <= kMostBytes; bytes = bytes * 5 + 1) {
      const Choice choice = choose(settings, collective, bytes).value();
      ASSERT_GE(choice.channels, std::min(5, most_channels(settings)));
      ASSERT_LE(choice.channels, 7);
    }
  });
}

TEST(Choice, OfMoreBytesIsHardlyFaster) {
  for_each({}, [](const Settings& settings, Collective collective) {
    double last = 0;
    bool was_cut = false;
    for (size_t bytes = 1; bytes <= kMostBytes; bytes += bytes / 3 + 1) {
      const double time = length_of(choose(settings, collective, bytes).value(), settings.nranks);
      // Chunks of large buffers alone may be cut, which long chains of the network gain from, and
      // host memory, over which a chunk goes twice.
      const bool is_cut = std::ranges::any_of(
          candidates(settings, collective, bytes),
          [](const Choice& each) { return publishes_chunks(each.protocol) && each.parts > 1; });
      if (is_cut && !was_cut) last = 0;
      was_cut = is_cut;
      ASSERT_GE(time, last * kHardlyLess) << bytes;
      last = time;
    }
  });
}

TEST(Choice, IsBeatenByNoVariantOfAsFewChannels) {
  int slower = 0;
  for (const CtaPolicy policy : {CtaPolicy::Default, CtaPolicy::Efficiency})
    for_each({.policy = policy}, [&](const Settings& settings, Collective collective) {
      for (size_t bytes = 1; bytes <= kMostBytes; bytes = bytes * 7 + 1) {
        const Choice choice = choose(settings, collective, bytes).value();
        const double length = length_of(choice, settings.nranks);
        const std::vector<Choice> all = candidates(settings, collective, bytes);
        const double longest = longest_acceptable(all, policy, settings.nranks);
        EXPECT_LE(length, longest);
        for (const Choice& other : all) {
          const double of_other = length_of(other, settings.nranks);
          // A wider one is left though it is faster, as the policy says.
          ASSERT_GE(of_other, length * kHardlyLess) << describe(other) << " of " << bytes;
          if (other.channels == choice.channels && of_other <= longest) {
            ASSERT_LE(choice.microseconds, other.microseconds) << describe(other);
          }
          if (other.channels < choice.channels) {
            ASSERT_GE(of_other, length) << describe(other) << " of " << bytes;
          }
          slower += of_other > length;
        }
      }
    });
  EXPECT_GT(slower, 0);
}

// The price alone decides: the choice loses to any candidate that is priced lower.
TEST(Choice, IsOfTheCandidateThatIsPricedLowest) {
  for_each({}, [](const Settings& settings, Collective collective) {
    for (const size_t bytes : {size_t{8}, size_t{1} << 20, size_t{64} << 20}) {
      std::vector<Choice> all = candidates(settings, collective, bytes);
      const Choice chosen = pick(all, settings.policy, settings.nranks);
      ASSERT_EQ(chosen, choose(settings, collective, bytes).value());
      for (Choice& each : all) {
        const Choice before = each;
        each.channels = chosen.channels;
        each.microseconds = chosen.microseconds / 2;
        each.lost_in_slots = 0;
        ASSERT_EQ(&pick(all, settings.policy, settings.nranks), &each) << describe(each);
        each = before;
      }
    }
  });
}

TEST(Choice, ForEfficiencyTakesNoMoreCtas) {
  bool takes_fewer = false;
  for_each({}, [&](const Settings& settings, Collective collective) {
    Settings efficient = settings;
    efficient.policy = CtaPolicy::Efficiency;
    for (size_t bytes = 1; bytes <= kMostBytes; bytes = bytes * 3 + 1) {
      const Choice usual = choose(settings, collective, bytes).value();
      const Choice frugal = choose(efficient, collective, bytes).value();
      ASSERT_LE(frugal.channels, usual.channels) << bytes;
      takes_fewer = takes_fewer || frugal.channels < usual.channels;
    }
  });
  EXPECT_TRUE(takes_fewer);
}

TEST(Choice, OneWayThroughHostMemoryTakesWholeChunksAndFewerCtasForMuch) {
  Settings settings = make_settings(gpu::Kind::Cuda, 2, {}).value();
  set_shares_host(settings, true);
  const auto has_wider = [&](Collective collective, int channels) {
    return std::ranges::any_of(
        candidates(settings, collective, 64 << 20), [channels](const Choice& choice) {
          return publishes_chunks(choice.protocol) && choice.channels > channels;
        });
  };
  for (const Collective collective : {Collective::Broadcast, Collective::Reduce}) {
    const Choice some = choose(settings, collective, 16 << 20).value();
    const Choice much = choose(settings, collective, 64 << 20).value();
    EXPECT_LT(much.channels, some.channels);
    EXPECT_EQ(some.parts, 1);
    EXPECT_EQ(much.parts, 1);
    EXPECT_GT(candidates(settings, collective, 512 << 10).size(),
              candidates(settings, collective, 16 << 20).size());
    EXPECT_FALSE(has_wider(collective, much.channels));
    EXPECT_TRUE(has_wider(Collective::AllReduce, much.channels));
  }
}

TEST(Choice, WhatNobodyMeasuredIsTakenWhenNothingElseIsAllowed) {
  Settings settings = make_settings(gpu::Kind::Virtual, 4, {}).value();
  const auto kind = static_cast<size_t>(Collective::AllGather);
  const Form& workers = *find_form(Collective::AllGather, "direct_workers");
  ASSERT_FALSE(
      find_cost(tuning_of(MachineClass::Virtual, ""), workers, Protocol::Simple).is_measured);
  EXPECT_NE(choose(settings, Collective::AllGather, 1 << 20).value().form, &workers);
  settings.forms[kind].reset().set(index_of(workers));
  EXPECT_EQ(choose(settings, Collective::AllGather, 1 << 20).value().form, &workers);
}

/// Of any number of ranks, nothing is refused that no variable forbids, up to those of one machine
/// and beyond.
TEST(Choice, IsThereForEveryCollectiveOfManyRanks) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    for (const int nranks : {9, 33, 256, 257, 1024, 8192}) {
      const Settings settings = make_settings(machine, nranks, {}).value();
      for (int c = 0; c < schedule::kCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        for (const size_t bytes : {size_t{4}, size_t{1} << 20})
          EXPECT_TRUE(choose(settings, collective, bytes).is_ok())
              << function_name(collective) << " of " << nranks;
      }
    }
  }
}

TEST(Choice, BetweenMachinesNeedsNoCommonMemoryAndSendsLeastOfMuch) {
  const auto settings_with = [](const char* protocol) {
    // LL128 alone gives way, since programs run on one machine and on several.
    setenv("NCCL_PROTO", protocol, 1);
    Settings settings = make_settings(gpu::Kind::Virtual, 6, {}).value();
    unsetenv("NCCL_PROTO");
    span_machines(settings, {});
    return settings;
  };
  const std::pair<const char*, Protocol> kChosen[] = {{"LL128", Protocol::Simple},
                                                      {"^LL", Protocol::Simple},
                                                      {"", Protocol::Simple},
                                                      {"LL,LL128", Protocol::LL}};
  for (const auto& [asked, protocol] : kChosen) {
    const Settings settings = settings_with(asked);
    for (int c = 0; c < schedule::kCollectives; ++c)
      for (const size_t bytes : {8, 1 << 20})
        EXPECT_EQ(choose(settings, static_cast<Collective>(c), bytes).value().protocol, protocol)
            << asked << " " << function_name(static_cast<Collective>(c)) << " of " << bytes;
    EXPECT_NE(choose(settings, Collective::AllReduce, 8).value().form->family(), "ring");
    EXPECT_FALSE(choose_for_list(settings, Collective::AllReduce, 8));
  }
}

/// Counters in the host's memory, and the fence before them, cost more than all that words do.
TEST(Choice, BetweenMachinesSmallOperationsOfGpusAreByWords) {
  Settings settings = make_settings(gpu::Kind::Cuda, 2, {}).value();
  span_machines(settings, {});
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    EXPECT_EQ(choose(settings, collective, 8).value().protocol, Protocol::LL)
        << function_name(collective);
    EXPECT_EQ(choose(settings, collective, 4 << 20).value().protocol, Protocol::Simple)
        << function_name(collective);
    EXPECT_FALSE(choose_for_list(settings, collective, 8)) << "whose kernel tells no proxy";
    EXPECT_FALSE(find_list_access(settings, {.collective = collective, .nranks = settings.nranks}));
  }
}

/// Two machines of four ranks: little takes few ways between them, much goes over each wire once.
TEST(Choice, BetweenMachinesLooksAtHowManyRanksEachHas) {
  Settings settings = make_settings(gpu::Kind::Virtual, 8, {}).value();
  span_machines(settings, {0, 0, 0, 0, 1, 1, 1, 1});
  for (const Collective collective : {Collective::AllReduce, Collective::ReduceScatter,
                                      Collective::Reduce, Collective::Broadcast}) {
    const Choice choice = choose(settings, collective, 256 << 20).value();
    const schedule::Schedule schedule =
        choice.form->build(8, {.machines = settings.machines}).take();
    double least = 1e9;
    for (const Form& algorithm : forms_of(collective))
      if (algorithm.max_ranks >= 8)
        least = std::min(
            least, schedule::load_of(algorithm.build(8, {.machines = settings.machines}).take(),
                                     settings.machines)
                       .wire);
    EXPECT_EQ(schedule::load_of(schedule, settings.machines).wire, least)
        << function_name(collective) << " by " << choice.form->name;
  }
  EXPECT_EQ(choose(settings, Collective::AllReduce, 256 << 20).value().form->name, "hierarchical");
}

/// Who has many machines to hear from is held up by each message; trees have fewer of them.
TEST(Choice, BetweenManyMachinesAggregatesLittle) {
  for (const gpu::Kind kind : {gpu::Kind::Virtual, gpu::Kind::Cuda})
    for (const int ranks_of_machine : {1, 4})
      for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter}) {
        const int machines = kind == gpu::Kind::Virtual ? 16 : 32;
        const int nranks = machines * ranks_of_machine;
        Settings settings = make_settings(kind, nranks, {}).value();
        std::vector<int> machine_of;
        for (int rank = 0; rank < nranks; ++rank) machine_of.push_back(rank / ranks_of_machine);
        span_machines(settings, machine_of);
        EXPECT_EQ(choose(settings, collective, 64, 0)->form->traits().pattern,
                  algorithms::Pattern::Forwarding)
            << schedule::name_of(collective) << " of " << machines << " machines of "
            << ranks_of_machine;
      }
  // Two machines have no one to pass anything on to.
  Settings settings = make_settings(gpu::Kind::Virtual, 2, {}).value();
  span_machines(settings, {});
  EXPECT_NE(choose(settings, Collective::AllGather, 64, 0)->form->traits().pattern,
            algorithms::Pattern::Forwarding);
}

/// A schedule too large to be looked at is priced as those that are.
TEST(Choice, PricesTreesOverManyMachinesAsTheirScheduleSays) {
  const auto time_of = [](int machines) {
    Settings settings = make_settings(gpu::Kind::Virtual, 4 * machines, {}).value();
    std::vector<int> machine_of;
    for (int rank = 0; rank < 4 * machines; ++rank) machine_of.push_back(rank / 4);
    span_machines(settings, machine_of);
    const Form& pat = *find_form(Collective::AllGather, "pat");
    const Workload work{.collective = Collective::AllGather,
                        .nranks = settings.nranks,
                        .bytes = size_t{64 << 20} / static_cast<size_t>(settings.nranks)};
    const Variant variant{.form = &pat, .protocol = Protocol::Simple, .channels = 1};
    return Price::of(settings, pat, Protocol::Simple).time_of(settings, work, variant);
  };
  EXPECT_NEAR(time_of(17) / time_of(16), 1, 0.1);
}

/// Of more ranks than were ever measured, the depth of trees beats the length of rings.
TEST(Choice, OfManyRanksSendsLittleAlongATree) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    const Settings settings = make_settings(machine, 64, {}).value();
    const std::string_view name = choose(settings, Collective::AllReduce, 8).value().form->name;
    EXPECT_TRUE(name == "tree" || name == "recursive_doubling") << name;
    EXPECT_NE(choose(settings, Collective::AllReduce, 1 << 30).value().form->name,
              "recursive_doubling");  // which sends log2 n times the data
  }
}

/// Whatever is chosen reduces every element once, in ascending order of ranks; and without the
/// setting something else is chosen somewhere.
TEST(Choice, OfInvariantSettingsReducesInOneOrder) {
  int others = 0;
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {2, 3, 4, 8, 9, 33}) {
      Settings settings = make_settings(machine, nranks, {}).value();
      for (const Collective collective :
           {Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter})
        for (size_t bytes = 4; bytes < kMostBytes; bytes = bytes * 9 + 4) {
          settings.is_invariant = false;
          others +=
              !reduces_in_one_order(settings, *choose(settings, collective, bytes).value().form);
          settings.is_invariant = true;
          const Choice choice = choose(settings, collective, bytes).value();
          const schedule::Schedule schedule = choice.form->build(nranks, {}).take();
          EXPECT_FALSE(schedule.partial_sums);
          for (const auto& channels : schedule.ranks)
            for (const schedule::Worker& worker : channels[0].workers)
              for (const schedule::Instruction& i : worker.instructions)
                if (i.reduce) {
                  EXPECT_EQ(i.receive_from.size(), static_cast<size_t>(nranks - 1));
                }
        }
    }
  EXPECT_GT(others, 0);
  Settings many = make_settings(gpu::Kind::Virtual, 300, {}).value();
  many.is_invariant = true;
  EXPECT_THAT(choose(many, Collective::AllReduce, 8).status().message(),
              testing::HasSubstr("over 300 ranks: NICCOLITE_INVARIANT of rank 0 leaves none"));
}

TEST(Choice, BlamesOnlyTheVariablesThatLeaveNone) {
  Settings settings = make_settings(gpu::Kind::Virtual, 300, {}).value();
  const auto kind = static_cast<size_t>(Collective::AllToAll);
  settings.forms[kind].reset().set(index_of(*find_form(Collective::AllToAll, "direct")));
  EXPECT_EQ(choose(settings, Collective::AllToAll, 8).status().message(),
            "no algorithm/protocol available for AlltoAll of 8 bytes over 300 ranks: NCCL_ALGO of "
            "rank 0 leaves none. This version has pat for so many ranks, by LL, LL128 and Simple");
  settings.forms[kind].set();
  settings.protocols[kind].fill(false);
  EXPECT_THAT(choose(settings, Collective::AllToAll, 8).status().message(),
              testing::HasSubstr("over 300 ranks: NCCL_PROTO of rank 0 leaves none"));
  // One order of additions takes connections of all ranks with each other, however many they are.
  settings = make_settings(gpu::Kind::Cuda, 16, {}).value();
  settings.is_invariant = true;
  settings.forms[static_cast<size_t>(Collective::AllReduce)].reset().set(
      index_of(*find_form(Collective::AllReduce, "ring")));
  EXPECT_EQ(choose(settings, Collective::AllReduce, 8).status().message(),
            "no algorithm/protocol available for AllReduce of 8 bytes over 16 ranks: "
            "NICCOLITE_INVARIANT and NCCL_ALGO of rank 0 leave none. This version has one_shot, "
            "two_shot for so many ranks, by LL, LL128 and Simple");
  // More ranks than there is any algorithm for.
  settings = make_settings(gpu::Kind::Virtual, 20'000, {}).value();
  EXPECT_EQ(choose(settings, Collective::AllToAll, 8).status().message(),
            "this version has no algorithm for AlltoAll over 20000 ranks");
}

// What the ways between the ranks do not carry, no variable leaves out, and none can bring back.
TEST(Choice, BlamesNoVariableForProtocolsThatThereAreNot) {
  const auto message_of = [](const Settings& settings) {
    return choose(settings, Collective::AllReduce, 8).status().message();
  };
  Settings settings = make_settings(gpu::Kind::Virtual, 16, {}).value();
  settings.forms[static_cast<size_t>(Collective::AllReduce)].reset().set(
      index_of(*find_form(Collective::AllReduce, "two_shot_workers")));
  Settings torn = settings;
  ASSERT_TRUE(forbid_ll128(torn).is_ok());
  EXPECT_THAT(message_of(torn), testing::HasSubstr("16 ranks: NCCL_ALGO of rank 0 leaves none."));
  EXPECT_THAT(message_of(torn), testing::EndsWith(", by LL and Simple"));
  Settings spread = settings;
  span_machines(spread, {});
  EXPECT_THAT(message_of(spread), testing::HasSubstr("16 ranks: NCCL_ALGO of rank 0 leaves none."));
  EXPECT_THAT(message_of(spread), testing::Not(testing::HasSubstr("LL128")));
  // Beside one that a variable does leave out.
  torn.protocols[static_cast<size_t>(Collective::AllReduce)][size_t(Protocol::LL)] = false;
  EXPECT_THAT(message_of(torn),
              testing::HasSubstr("NCCL_ALGO and NCCL_PROTO of rank 0 leave none"));
}

TEST(Choice, PrefersFewerCtasAmongEquals) {
  const auto choice = [](int channels, double microseconds) {
    Choice result;
    result.channels = channels;
    result.microseconds = microseconds;
    return result;
  };
  const std::vector<Choice> choices{choice(24, 10), choice(12, 10.05), choice(8, 10.4),
                                    choice(4, 11), choice(12, 10.02)};
  EXPECT_EQ(pick(choices, CtaPolicy::Default, 2).microseconds, 10.02);
  EXPECT_EQ(pick(choices, CtaPolicy::Efficiency, 2).channels, 8);
  // What is within 1 % may have fewer, of short ones of two ranks within less.
  const std::vector<Choice> close{choice(24, 10), choice(12, 10.08)};
  EXPECT_EQ(pick(close, CtaPolicy::Default, 4).channels, 12);
  EXPECT_EQ(pick(close, CtaPolicy::Default, 2).channels, 24);
  // More than usual are to save 5 % for twice as many; between two ranks short ones less.
  const auto by = [&](double times, int nranks = 2) {
    return [&, times, nranks](double usual, double twice) {
      return pick(std::vector{choice(kUsualCtas, times * usual),
                              choice(2 * kUsualCtas, times * twice)},
                  CtaPolicy::Default, nranks)
          .channels;
    };
  };
  EXPECT_EQ(by(10)(10, 9.6), kUsualCtas);
  EXPECT_EQ(by(10)(10, 9.4), 2 * kUsualCtas);
  EXPECT_EQ(by(0.5)(10, 9.8), 2 * kUsualCtas);
  EXPECT_EQ(by(0.5)(10, 9.9), kUsualCtas);
  EXPECT_EQ(by(0.5, 4)(10, 9.6), kUsualCtas);
  EXPECT_EQ(pick(std::vector{choice(64, 10), choice(48, 9.4)}, CtaPolicy::Default, 2).channels, 48);
}

}  // namespace
}  // namespace niccolite::planner
