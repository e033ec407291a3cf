#include "planner/settings.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "planner/choice/choice.h"

namespace niccolite::planner {
namespace {

/// Of an environment in which NCCL_ALGO is `algorithms`.
Settings settings_with(const char* algorithms, gpu::Kind machine = gpu::Kind::Virtual) {
  EXPECT_EQ(setenv("NCCL_ALGO", algorithms, 1), 0);
  Settings settings = make_settings(machine, 4, {}).value();
  EXPECT_EQ(unsetenv("NCCL_ALGO"), 0);
  return settings;
}

TEST(Settings, AnAlgorithmOfOneCollectiveLeavesTheOthersAlone) {
  const Settings two_shot = settings_with("two_shot");
  const Settings ring = settings_with("ring;broadcast:direct");
  const auto chosen = [](const Settings& settings, Collective collective) {
    return std::string(choose(settings, collective, 100).value().form->name);
  };
  EXPECT_EQ(chosen(two_shot, Collective::AllReduce), "two_shot");
  EXPECT_EQ(chosen(two_shot, Collective::AllToAll), "direct");
  EXPECT_EQ(chosen(ring, Collective::AllReduce), "ring");
  EXPECT_EQ(chosen(ring, Collective::AllGather), "ring");
  EXPECT_EQ(chosen(ring, Collective::Broadcast), "direct");
  EXPECT_EQ(chosen(ring, Collective::Scatter), "direct");
}

TEST(Settings, AFamilyAllowsAllItsFormsAndEachFormCanBeNamed) {
  const auto forms = [](const char* text) {
    const Settings settings = settings_with(text, gpu::Kind::Cuda);
    return std::pair(allows(settings, *find_form(Collective::AllReduce, "two_shot")),
                     allows(settings, *find_form(Collective::AllReduce, "two_shot_workers")));
  };
  EXPECT_EQ(forms("two_shot"), std::pair(true, true));
  EXPECT_EQ(forms("two_shot_plain"), std::pair(true, false));
  EXPECT_EQ(forms("TWO_SHOT_WORKERS"), std::pair(false, true));
  EXPECT_EQ(forms("^two_shot_workers"), std::pair(true, false));
  EXPECT_EQ(forms("allreduce:ring"), std::pair(false, false));
}

TEST(Settings, EveryAlgorithmCanBeSelectedAlone) {
  for (int c = 0; c < schedule::kCollectives; ++c) {
    const std::span<const Form> all = forms_of(static_cast<Collective>(c));
    for (const Form& algorithm : all) {
      const std::string text = function_name(algorithm.collective) + (":" + selector_of(algorithm));
      const Settings settings = settings_with(text.c_str());
      for (const Form& other : all)
        EXPECT_EQ(allows(settings, other), &other == &algorithm) << text;
    }
  }
}

// Every pair of many ranks may come to have a connection for messages.
TEST(Settings, MessagesOfManyRanksHaveSmallConnectionsOfTheirOwn) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    const Settings few = make_settings(machine, 16, {}).value();
    for (const auto protocol : {executor::Protocol::LL128, executor::Protocol::Simple}) {
      EXPECT_EQ(shape_of(few, Collective::PointToPoint, protocol),
                shape_of(few, Collective::AllGather, protocol));
      EXPECT_EQ(message_tag(few, protocol), 0);
    }
    for (const int nranks : {17, 64, 300, 1024}) {
      const Settings many = make_settings(machine, nranks, {}).value();
      for (int p = 0; p < executor::kProtocols; ++p) {
        const auto protocol = static_cast<executor::Protocol>(p);
        EXPECT_EQ(message_tag(many, protocol), schedule::kMessageTag);
        const executor::FifoShape& own = shape_of(many, Collective::PointToPoint, protocol);
        const executor::FifoShape& shared = shape_of(many, Collective::AllGather, protocol);
        EXPECT_EQ(own.channels, shared.channels);
        EXPECT_EQ(own.slot_bytes % 128, 0u);
        EXPECT_LE(own.slots_bytes() * static_cast<size_t>(nranks), 16 * shared.slots_bytes());
        if (machine == gpu::Kind::Cuda) continue;
        EXPECT_LE(own.slots_bytes() * static_cast<size_t>(nranks), size_t{4} << 20);
      }
    }
  }
}

// So that eight each way share a launch, each with a slot of its own.
TEST(Settings, SmallMessagesHaveDeepConnections) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {2, 16, 17, 300}) {
      const Settings settings = make_settings(machine, nranks, {}).value();
      EXPECT_EQ(shape_of(settings, Collective::PointToPoint, executor::Protocol::LL).depth, 8u);
      EXPECT_EQ(message_tag(settings, executor::Protocol::LL), schedule::kMessageTag);
    }
}

TEST(Settings, ObeysTheLimitsOfTheConfiguration) {
  const Settings settings =
      make_settings(gpu::Kind::Cuda, 4, {.min_ctas = 2, .max_ctas = 5}).value();
  EXPECT_EQ(settings.min_channels, 2);
  EXPECT_EQ(most_channels(settings), 5);
  for (const executor::FifoShape& shape : settings.shapes) EXPECT_LE(shape.channels, 5u);
  const Settings wide = make_settings(gpu::Kind::Virtual, 4, {.min_ctas = 3}).value();
  EXPECT_EQ(most_channels(wide), 3);
  for (const executor::FifoShape& shape : wide.shapes) EXPECT_EQ(shape.channels, 3u);
  // An explicit minimum above the default asks for more.
  const Settings many = make_settings(gpu::Kind::Cuda, 4, {.min_ctas = 40}).value();
  EXPECT_EQ(usual_channels(many), 40);
  for (const executor::FifoShape& shape : many.shapes) EXPECT_GE(shape.channels, 40u);
}

TEST(Settings, LeaveRanksThatShareAGpuAPlaceEach) {
  Settings settings = make_settings(gpu::Kind::Cuda, 4, {.min_ctas = 40}).value();
  bound_ctas(settings, 16);
  set_reach(settings, true);
  for (const executor::FifoShape& shape : settings.shapes) EXPECT_EQ(shape.channels, 16u);
  bound_ctas(settings, 100);
  EXPECT_EQ(settings.max_channels, 16);
}

// Ranks apply what they learn when they meet to rank 0's settings, whatever their own environment.
TEST(Settings, OfRankZeroComeToTheSameShapesEverywhere) {
  Settings received = make_settings(gpu::Kind::Cuda, 4, {}).value();
  received.slots_bytes = 1 << 20;
  for (const bool reaches_users : {true, false}) {
    set_reach(received, reaches_users);
    const executor::FifoShape& simple =
        received.shapes[static_cast<size_t>(executor::Protocol::Simple)];
    EXPECT_EQ(simple.depth * simple.slot_bytes, 1u << 20);
  }
  received.slots_bytes = -1;
  for (const bool reaches_users : {true, false}) {
    set_reach(received, reaches_users);
    const executor::FifoShape& simple =
        received.shapes[static_cast<size_t>(executor::Protocol::Simple)];
    EXPECT_EQ(simple.slot_bytes, reaches_users ? 64u << 10 : 128u << 10);
  }
}

// What three connections have together, one may have alone.
TEST(Settings, GiveOneConnectionMoreThanSeveral) {
  for (const bool reaches_users : {true, false}) {
    Settings two = make_settings(gpu::Kind::Cuda, 2, {}).value();
    Settings four = make_settings(gpu::Kind::Cuda, 4, {}).value();
    set_reach(two, reaches_users);
    set_reach(four, reaches_users);
    size_t of_two = 0, of_one_of_four = 0;
    for (size_t p = 0; p < executor::kProtocols; ++p) {
      EXPECT_GE(two.shapes[p].slots_bytes(), four.shapes[p].slots_bytes());
      of_two += two.shapes[p].slots_bytes();
      of_one_of_four += four.shapes[p].slots_bytes();
    }
    EXPECT_GT(of_two, of_one_of_four);
    EXPECT_LE(of_two, 3 * of_one_of_four);
  }
}

// LL128 alone may have more, which are chosen where they save enough (length_of() of choice.h).
TEST(Settings, TakeAtMostTheUsualCtasUnlessAsked) {
  const Settings settings = make_settings(gpu::Kind::Cuda, 4, {}).value();
  EXPECT_EQ(usual_channels(settings), kUsualCtas);
  for (const auto protocol : {executor::Protocol::LL, executor::Protocol::Simple})
    EXPECT_LE(most_channels(settings, protocol), kUsualCtas);
  EXPECT_GT(most_channels(settings, executor::Protocol::LL128), kUsualCtas);
  EXPECT_EQ(most_channels(settings), most_channels(settings, executor::Protocol::LL128));
}

TEST(Settings, FollowThePolicyOfTheConfiguration) {
  EXPECT_EQ(policy_of(0, "test"), CtaPolicy::Default);
  EXPECT_EQ(policy_of(1, "test"), CtaPolicy::Efficiency);
  EXPECT_EQ(policy_of(2, "test"), CtaPolicy::Zero);
  EXPECT_EQ(policy_of(3, "test"), CtaPolicy::Zero);
  const Settings settings =
      make_settings(gpu::Kind::Cuda, 4, {.policy = CtaPolicy::Efficiency}).value();
  EXPECT_EQ(settings.policy, CtaPolicy::Efficiency);
}

}  // namespace
}  // namespace niccolite::planner
