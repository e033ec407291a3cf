#include "planner/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace niccolite::planner {
namespace {

using executor::Protocol;
using testing::HasSubstr;

Settings settings_of(gpu::Kind machine, int nranks) {
  return make_settings(machine, nranks, {}).value();
}

const Alternative& find(const Explanation& explanation, std::string_view algorithm,
                        Protocol protocol) {
  const auto found = std::find_if(
      explanation.alternatives.begin(), explanation.alternatives.end(),
      [&](const auto& each) { return each.form->name == algorithm && each.protocol == protocol; });
  EXPECT_NE(found, explanation.alternatives.end());
  return *found;
}

// Every algorithm by every protocol is there once, and what is said of it is so.
TEST(Explain, SaysOfEveryAlternativeWhatTheChoiceIsMadeOf) {
  int wider = 0, slower = 0, unmeasured = 0, ineligible = 0;
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (const int nranks : {2, 3, 4, 8, 9, 33})
      for (int c = 0; c < schedule::kCollectives; ++c)
        for (const CtaPolicy policy : {CtaPolicy::Default, CtaPolicy::Efficiency})
          for (size_t bytes = 4; bytes < (size_t{1} << 31); bytes = bytes * 11 + 4) {
            Settings settings = settings_of(machine, nranks);
            settings.policy = policy;
            const auto collective = static_cast<Collective>(c);
            SCOPED_TRACE(testing::Message() << function_name(collective) << " of " << bytes
                                            << " over " << nranks << " ranks");
            const Choice chosen = choose(settings, collective, bytes).value();
            const std::vector<Choice> compared = candidates(settings, collective, bytes);
            const Explanation explanation = explain(settings, collective, bytes).value();
            ASSERT_EQ(explanation.chosen, chosen);
            ASSERT_EQ(explanation.alternatives[0].verdict, Verdict::Chosen);
            ASSERT_EQ(explanation.alternatives[0].best, chosen);
            ASSERT_EQ(explanation.alternatives.size(),
                      forms_of(collective).size() * executor::kProtocols);
            for (size_t i = 1; i < explanation.alternatives.size(); ++i) {
              const Alternative& each = explanation.alternatives[i];
              SCOPED_TRACE(testing::Message()
                           << each.form->name << " " << executor::name_of(each.protocol));
              ASSERT_NE(each.verdict, Verdict::Chosen);
              ASSERT_FALSE(each.reason.empty());
              const bool is_ineligible = each.verdict == Verdict::Ineligible;
              const bool is_compared = !is_ineligible && std::find(compared.begin(), compared.end(),
                                                                   each.best) != compared.end();
              ASSERT_EQ(is_compared,
                        each.verdict == Verdict::Slower || each.verdict == Verdict::Wider);
              const bool is_possible_here = is_possible(machine, nranks, *each.form, each.protocol);
              ASSERT_EQ(is_possible_here, !is_ineligible);
              switch (each.verdict) {
                case Verdict::Slower:
                  ASSERT_GE(each.best.microseconds, chosen.microseconds);
                  ++slower;
                  break;
                case Verdict::Wider:
                  ASSERT_GT(each.best.channels, chosen.channels);
                  ++wider;
                  break;
                case Verdict::Unmeasured:
                  ++unmeasured;
                  break;
                default:
                  ++ineligible;
              }
            }
          }
  EXPECT_GT(std::min({wider, slower, unmeasured, ineligible}), 0);
}

TEST(Explain, NamesWhatKeepsAnAlgorithmOut) {
  Settings settings = settings_of(gpu::Kind::Cuda, 9);
  const auto kind = static_cast<size_t>(Collective::AllReduce);
  const auto reason = [&](std::string_view algorithm, Protocol protocol) {
    const Explanation explanation = explain(settings, Collective::AllReduce, 1 << 20).value();
    return find(explanation, algorithm, protocol).reason;
  };
  EXPECT_EQ(reason("two_shot", Protocol::Simple),
            "connects all ranks with each other, which is done for up to 8");
  EXPECT_EQ(reason("two_shot_workers", Protocol::LL), "is for 1 to 8 ranks");
  settings = settings_of(gpu::Kind::Cuda, 4);
  EXPECT_THAT(reason("one_shot", Protocol::Simple), HasSubstr("lowest latency"));
  settings.forms[kind].reset(index_of(*find_form(Collective::AllReduce, "ring")));
  settings.protocols[kind][static_cast<size_t>(Protocol::LL)] = false;
  EXPECT_EQ(reason("ring", Protocol::Simple), "is left out by NCCL_ALGO");
  EXPECT_THAT(reason("two_shot", Protocol::LL), HasSubstr("left out by NCCL_PROTO"));
  span_machines(settings, {});
  EXPECT_THAT(reason("two_shot", Protocol::LL), HasSubstr("left out by NCCL_PROTO"));
  EXPECT_THAT(reason("two_shot", Protocol::LL128), HasSubstr("the network connects some"));
  settings.forms[kind].reset();
  EXPECT_EQ(explain(settings, Collective::AllReduce, 8).status().message(),
            choose(settings, Collective::AllReduce, 8).status().message());
}

}  // namespace
}  // namespace niccolite::planner
