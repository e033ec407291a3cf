#include "planner/choice/call_settings.h"

#include <gmock/gmock.h>

namespace niccolite::planner {
namespace {

using executor::Protocol;
using testing::HasSubstr;

Settings settings_of(int nranks) { return make_settings(gpu::Kind::Cuda, nranks, {}).value(); }

/// "RING_LL RING_LL128": what a selection means, by the names of algorithms and protocols.
std::string meaning(Collective collective, std::string_view text) {
  const Selection selection = parse_call_selection(collective, text);
  std::string names;
  for (const Form& algorithm : forms_of(collective))
    for (int p = 0; p < executor::kProtocols; ++p)
      if (selection[static_cast<size_t>(p)].test(index_of(algorithm)))
        names += fmt::format("{}{}_{}", names.empty() ? "" : " ", algorithm.name,
                             executor::name_of(static_cast<Protocol>(p)));
  return names;
}

TEST(CallSelection, MeansWhatBeginsWithItsNames) {
  constexpr Collective kGather = Collective::AllGather;
  EXPECT_EQ(meaning(kGather, "RING"), "ring_LL ring_LL128 ring_Simple");
  EXPECT_EQ(meaning(kGather, "ring_ll"), "ring_LL ring_LL128");
  EXPECT_EQ(meaning(kGather, " RING _ SIMPLE "), "ring_Simple");
  EXPECT_EQ(meaning(kGather, "RING_LL + ^RING_LL128"), "ring_LL");
  EXPECT_EQ(meaning(kGather, "RING_LL128,RING_SIMPLE"), "ring_LL128 ring_Simple");
  EXPECT_EQ(meaning(kGather, "^RING+^RING"), meaning(kGather, "^RING"));
  EXPECT_THAT(meaning(kGather, "^RING_LL"), HasSubstr("ring_Simple"));
  EXPECT_THAT(meaning(kGather, "^NVLS"), HasSubstr("ring_LL "));
  for (const char* const nothing : {"", "^", "+", ",", "NO_SUCH", "^NO_SUCH", "RING+NO_SUCH",
                                    "NVLS_SIMPLE", "SYMK_ST", "RING+^RING", "RING_LL_"})
    EXPECT_EQ(meaning(kGather, nothing), "") << nothing;
  EXPECT_EQ(meaning(kGather, "NO_SUCH,RING_SIMPLE"), "ring_Simple");
  for (int turn = 0; turn < 2; ++turn)
    for (int i = 0; i < 300; ++i) {
      const std::string text =
          i % 3 == 0 ? "RING" : "RING_LL," + std::string(static_cast<size_t>(i), ' ');
      EXPECT_EQ(find_call_selection(kGather, text), parse_call_selection(kGather, text));
      EXPECT_EQ(find_call_selection(Collective::AllToAll, text),
                parse_call_selection(Collective::AllToAll, text));
    }
}

TEST(CallSettings, EqualOnesHaveOneAddressAndTag) {
  const CallSettings one{.max_ctas = 3}, same{.max_ctas = 3}, other{.max_ctas = 4};
  EXPECT_EQ(intern(one), intern(same));
  EXPECT_NE(intern(one), intern(other));
  EXPECT_EQ(*intern(other), other);
  EXPECT_EQ(tag_of(one), tag_of(same));
  EXPECT_NE(tag_of(one), tag_of(other));
  EXPECT_NE(tag_of({}), 0);
}

TEST(CallSettings, BoundTheCtasWithinThoseOfTheCommunicator) {
  const Settings settings = settings_of(4);
  const int most = most_channels(settings);
  ASSERT_GT(most, 2);
  for (size_t bytes = 8; bytes <= size_t{64} << 20; bytes *= 8) {
    const auto channels = [&](const CallSettings& own) {
      return choose_by(settings, own, Collective::AllReduce, bytes).value().channels;
    };
    EXPECT_EQ(channels({.max_ctas = 1}), 1) << bytes;
    EXPECT_LE(channels({.max_ctas = 2}), 2) << bytes;
    EXPECT_EQ(channels({.min_ctas = 2, .max_ctas = 2}), 2) << bytes;
    EXPECT_LE(channels({.max_ctas = 10 * most}), most) << bytes;
    EXPECT_EQ(channels({.min_ctas = 3, .max_ctas = 2}), channels({.max_ctas = 2})) << bytes;
    EXPECT_EQ(channels({}), choose(settings, Collective::AllReduce, bytes).value().channels);
  }
}

TEST(CallSettings, ComeAfterTheEnvironmentOfRankZero) {
  Settings settings = settings_of(4);
  const CallSettings own{.min_ctas = 2, .max_ctas = 2, .policy = CtaPolicy::Efficiency};
  EXPECT_EQ(narrowed(settings, own).min_channels, 2);
  EXPECT_EQ(most_channels(narrowed(settings, own)), 2);
  EXPECT_EQ(narrowed(settings, own).policy, CtaPolicy::Efficiency);
  settings.are_channels_named = settings.is_policy_named = true;
  EXPECT_EQ(narrowed(settings, own), settings);
}

TEST(CallSettings, ChooseOfTheSelectionAlone) {
  const Settings settings = settings_of(4);
  const auto chosen = [&](const char* text, bool must_select = true) {
    const CallSettings own{.selection = parse_call_selection(Collective::AllReduce, text),
                           .selection_text = text,
                           .must_select = must_select};
    return choose_by(settings, own, Collective::AllReduce, 1 << 20);
  };
  EXPECT_EQ(chosen("RING_SIMPLE").value().form->name, std::string_view("ring"));
  EXPECT_EQ(chosen("RING_LL+^RING_LL128").value().protocol, Protocol::LL);
  EXPECT_EQ(chosen("TREE").value().form->family(), "tree");
  // Of one machine's ranks there are no machines to go by.
  const Result<Choice> none = chosen("HIERARCHICAL");
  ASSERT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().code(), Code::InvalidArgument);
  EXPECT_THAT(
      none.status().message(),
      HasSubstr("algSelection: no algorithm in the selected set is available for AllReduce"));
  EXPECT_EQ(chosen("HIERARCHICAL", false).value().form,
            choose(settings, Collective::AllReduce, 1 << 20).value().form);
}

}  // namespace
}  // namespace niccolite::planner
