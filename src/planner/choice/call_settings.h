// CallSettings: one collective's own settings, in addition to its communicator's (ncclCollConfig_t
// of NCCL 2.31): CTAs, and the algorithms and protocols that may carry it out. All ranks pass equal
// settings, since all of them must choose alike. Pure functions; the comments name the ones for any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/choice/choice.h"
#include "planner/settings.h"

namespace niccolite::planner {

/// Some algorithms of one collective, each by some protocols: a set of algorithms for each
/// protocol.
using Selection = std::array<FormSet, executor::kProtocols>;
bool is_empty(const Selection& selection);

/// The syntax of ncclCollConfig_t::algSelection; blanks are dropped, case is ignored:
///   selection = all *( "," all )      union
///   all = factor *( "+" factor )      intersection
///   factor = [ "^" ] name             the name's selection, or with "^" all else
/// A name means every ALGORITHM_PROTOCOL that begins with it ("RING_LL" also RING_LL128), of NCCL's
/// algorithms and of this library's. NCCL's algorithms that this library does not have mean
/// nothing. An intersection with an unknown or empty name is empty. Source: reference c-api-2.32,
/// §4.
Selection parse_call_selection(Collective collective, std::string_view text);
/// Parses like parse_call_selection(), with a cache, because calls pass the same text each time.
/// Any thread.
Selection find_call_selection(Collective collective, const std::string& text);

struct CallSettings {
  int min_ctas = 0;  // 0: not set
  int max_ctas = 0;  // 0: not set
  std::optional<CtaPolicy> policy{};
  std::optional<Selection> selection{};  // of the call's collective; not empty
  std::string selection_text{};          // as the user wrote it
  bool must_select = true;               // an empty selection is an error; false: then free choice

  bool are_set() const { return min_ctas > 0 || max_ctas > 0 || policy || selection; }
  friend bool operator==(const CallSettings&, const CallSettings&) = default;
};

/// "maxCTAs 2, algSelection RING_LL".
std::string describe(const CallSettings& own);
/// Returns equal tags for equal settings, and different ones for others, except for one pair in
/// 65,535; never 0.
uint16_t tag_of(const CallSettings& own);

/// Settings equal to `own`, at one address for all that are equal, for as long as the process runs:
/// programs have few. Any thread.
const CallSettings* intern(const CallSettings& own);

/// Returns the settings for a call with settings of its own: `of` with the call's policy and bounds
/// of CTAs. The bounds do not exceed the bounds in `of`, and rank 0's environment takes precedence.
Settings narrowed(const Settings& of, const CallSettings& own);

/// Chooses as choose() does. Errors: InvalidArgument when `own` insists on a selection, and no
/// variant of it can carry out the operation.
Result<Choice> choose_by(const Settings& settings, const CallSettings& own, Collective collective,
                         size_t bytes, int most_channels = 0);

}  // namespace niccolite::planner
