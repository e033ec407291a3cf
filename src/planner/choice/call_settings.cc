#include "planner/choice/call_settings.h"

#include <algorithm>
#include <cctype>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "planner/choice/selection.h"
#include "planner/hash.h"

namespace niccolite::planner {
namespace {

// NCCL's algorithms that this library does not have. The names are known, and select nothing.
constexpr std::string_view kForeignNames[] = {"symk_agxll_r",
                                              "symk_agxllmc_r",
                                              "symk_ld",
                                              "symk_ldmc",
                                              "symk_ll",
                                              "symk_llmc",
                                              "symk_raila2a_lsald",
                                              "symk_raila2a_lsaldmc",
                                              "symk_railring_lsastmc",
                                              "symk_rsxld_agxst",
                                              "symk_rsxldmc_agxstmc",
                                              "symk_st",
                                              "symk_rsxtmald_agxtmast",
                                              "symk_stmc",
                                              "symk_tmald",
                                              "symk_tmast",
                                              "symk_tmastmc"};

/// Calls name NCCL_ALGO's collnetdirect "collnet_direct".
std::string name_in_calls(const std::string& algorithm) {
  constexpr std::string_view kNetwork = "collnet";
  return algorithm.starts_with(kNetwork) ? "collnet_" + algorithm.substr(kNetwork.size())
                                         : algorithm;
}

/// Returns the selection that a name means; none: no algorithm of any collective has this name.
std::optional<Selection> named(Collective collective, std::string_view name) {
  if (name.empty()) return std::nullopt;
  Selection meant{};
  bool is_known = std::ranges::any_of(
      kForeignNames, [&](std::string_view other) { return other.starts_with(name); });
  for (const Token& algorithm : algorithm_tokens(collective))
    for (const Token& protocol : protocol_tokens()) {
      if (!(name_in_calls(algorithm.name) + "_" + protocol.name).starts_with(name)) continue;
      is_known = true;
      for (size_t p = 0; p < meant.size(); ++p)
        if ((protocol.bits >> p & 1) != 0) meant[p] |= FormSet(algorithm.bits);
    }
  return is_known ? std::optional(meant) : std::nullopt;
}

Selection everything(Collective collective) {
  Selection all{};
  for (FormSet& set : all) {
    for (const Form& form : forms_of(collective)) set.set(index_of(form));
    set.set(kNvlsBit);
    set.set(kNvlsTreeBit);
  }
  return all;
}

Selection product(Collective collective, std::string_view text) {
  Selection meant = everything(collective);
  for (std::string_view factor : split(text, '+')) {
    const bool is_inverted = factor.starts_with('^');
    if (is_inverted) factor.remove_prefix(1);
    const std::optional<Selection> by_name = named(collective, factor);
    if (!by_name) return {};
    for (size_t p = 0; p < meant.size(); ++p)
      meant[p] &= is_inverted ? ~(*by_name)[p] : (*by_name)[p];
  }
  return meant;
}

bool selects(const Selection& selection, const Option& option) {
  return selection[static_cast<size_t>(option.protocol)].test(
      !option.by_team                          ? index_of(*option.form)
      : option.form->traits().follows_machines ? kNvlsTreeBit
                                               : kNvlsBit);
}

}  // namespace

bool is_empty(const Selection& selection) {
  return std::ranges::all_of(selection, [](const FormSet& set) { return set.none(); });
}

Selection parse_call_selection(Collective collective, std::string_view text) {
  std::string plain = lower(text);
  std::erase_if(plain, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
  Selection meant{};
  for (const std::string_view each : split(plain, ',')) {
    const Selection more = product(collective, each);
    for (size_t p = 0; p < meant.size(); ++p) meant[p] |= more[p];
  }
  return meant;
}

Selection find_call_selection(Collective collective, const std::string& text) {
  constexpr size_t kMostKnown = 256;
  using Known = std::map<std::pair<Collective, std::string>, Selection>;
  static std::mutex mutex;
  static Known& known = *new Known;  // outlives static objects
  std::lock_guard lock(mutex);
  auto key = std::pair(collective, text);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMostKnown) known.clear();
  return known.emplace(std::move(key), parse_call_selection(collective, text)).first->second;
}

std::string describe(const CallSettings& own) {
  std::string text;
  const auto add = [&](std::string_view name, const auto& value) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  };
  if (own.min_ctas > 0) add("minCTAs", own.min_ctas);
  if (own.max_ctas > 0) add("maxCTAs", own.max_ctas);
  if (own.policy) add("CTAPolicy", static_cast<int>(*own.policy));
  if (own.selection) add("algSelection", own.selection_text);
  return text;
}

uint16_t tag_of(const CallSettings& own) {
  Hash hash;
  hash.add(static_cast<uint64_t>(own.min_ctas));
  hash.add(static_cast<uint64_t>(own.max_ctas));
  hash.add(own.policy ? 1 + static_cast<uint64_t>(*own.policy) : 0);
  for (size_t p = 0; own.selection && p < own.selection->size(); ++p)
    hash.add((*own.selection)[p].to_ulong());
  hash.add(own.must_select ? 1 : 0);
  return static_cast<uint16_t>(1 + hash.value() % 0xffff);
}

const CallSettings* intern(const CallSettings& own) {
  static std::mutex mutex;
  static std::deque<CallSettings>& all = *new std::deque<CallSettings>;  // outlives static objects
  std::lock_guard lock(mutex);
  for (const CallSettings& known : all)
    if (known == own) return &known;
  return &all.emplace_back(own);
}

Settings narrowed(const Settings& of, const CallSettings& own) {
  Settings settings = of;
  if (own.policy && !of.is_policy_named) settings.policy = *own.policy;
  if (of.are_channels_named) return settings;
  int most = most_channels(of);
  if (own.max_ctas > 0) most = std::min(most, own.max_ctas);
  for (executor::FifoShape& shape : settings.shapes)
    shape.channels = std::min(shape.channels, static_cast<uint32_t>(most));
  if (own.min_ctas > 0) settings.min_channels = own.min_ctas;
  if (settings.min_channels > most) settings.min_channels = 1;
  return settings;
}

Result<Choice> choose_by(const Settings& settings, const CallSettings& own, Collective collective,
                         size_t bytes, int most_channels) {
  const Settings mine = narrowed(settings, own);
  if (!own.selection) return choose(mine, collective, bytes, most_channels);
  const std::vector<Option> options = survey(mine, collective, bytes);
  std::vector<Option> selected;
  for (const Option& option : options)
    if (option.obstacle.empty() && selects(*own.selection, option)) selected.push_back(option);
  if (!candidates(selected).empty())
    return choose(mine, collective, bytes, selected, most_channels);
  if (own.must_select)
    return Status::invalid_argument(
        "algSelection: no algorithm in the selected set is available for {}: \"{}\" has nothing "
        "that can carry out {} bytes over {} ranks here (`niccolite explain` lists what can)",
        function_name(collective), own.selection_text, bytes, settings.nranks);
  LOG(Info, Tuning, "algSelection \"{}\" has nothing for {} of {} bytes: the cost model decides",
      own.selection_text, function_name(collective), bytes);
  return choose(mine, collective, bytes, options, most_channels);
}

}  // namespace niccolite::planner
