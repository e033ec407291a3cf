#include "planner/choice/selection.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "executor/protocol/fifo.h"
#include "planner/form.h"
#include "planner/settings.h"

namespace niccolite::planner {

using executor::Protocol;
using schedule::Collective;

namespace {

constexpr std::string_view kFunctions[] = {"broadcast",     "reduce",    "allgather",
                                           "reducescatter", "allreduce", "alltoall",
                                           "gather",        "scatter",   "sendrecv"};

/// The tokens that select something, for people.
std::string names_of(std::span<const Token> tokens) {
  std::string names;
  for (const Token& token : tokens)
    if (token.bits != 0) names += (names.empty() ? "" : ", ") + token.name;
  return names;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::vector<Token> algorithm_tokens(Collective collective) {
  std::vector<Token> tokens;
  const auto add = [&](const std::string& name, uint32_t bits) {
    const auto found = std::ranges::find(tokens, name, &Token::name);
    if (found == tokens.end())
      tokens.push_back({name, bits});
    else
      found->bits |= bits;
  };
  const auto add_all_of = [&](Collective each) {
    for (const Form& form : forms_of(each)) {
      const uint32_t bit = each == collective ? 1u << index_of(form) : 0;
      add(selector_of(form), bit);
      add(std::string(form.family()), bit);
    }
  };
  for (int c = 0; c < schedule::kCollectives; ++c) add_all_of(static_cast<Collective>(c));
  // Any algorithm may go by a multicast team.
  const bool may_go_by_team = collective != Collective::PointToPoint;
  add("nvls", may_go_by_team ? 1u << kNvlsBit : 0);
  add("nvlstree", may_go_by_team ? 1u << kNvlsTreeBit : 0);
  return tokens;
}

std::vector<Token> protocol_tokens() {
  std::vector<Token> tokens;
  for (int id = 0; id < executor::kProtocols; ++id)
    tokens.push_back({lower(executor::name_of(static_cast<Protocol>(id))), 1u << id});
  return tokens;
}

bool is_named(std::string_view text, std::string_view function) {
  const std::string plain = lower(text);
  for (const std::string_view group : split(plain, ';'))
    if (group.substr(0, group.find(':')) == function) return true;
  return false;
}

Result<uint32_t> parse_selection(std::string_view variable, std::string_view text,
                                 std::string_view function, std::span<const Token> tokens,
                                 std::span<const std::string_view> foreign) {
  uint32_t all = 0;
  for (const Token& token : tokens) all |= token.bits;
  uint32_t allowed = all;
  if (text.empty()) return allowed;
  bool first = true;
  const std::string plain = lower(text);
  for (std::string_view group : split(plain, ';')) {
    if (group.empty()) continue;
    bool applies = true;
    if (const size_t colon = group.find(':'); colon != std::string_view::npos) {
      const std::string_view named = group.substr(0, colon);
      if (std::find(std::begin(kFunctions), std::end(kFunctions), named) == std::end(kFunctions))
        return Status::invalid_usage("{} names the unknown function '{}' in '{}'", variable, named,
                                     text);
      applies = named == function;
      group.remove_prefix(colon + 1);
    } else if (!first) {
      return Status::invalid_usage("{}: only the first group may omit the function, in '{}'",
                                   variable, text);
    }
    first = false;
    const bool inverted = group.starts_with('^');
    if (inverted) group.remove_prefix(1);
    uint32_t named = 0;
    bool names_any = false;
    for (const std::string_view name : split(group, ',')) {
      if (name.empty()) continue;
      names_any = true;
      const auto found = std::find_if(tokens.begin(), tokens.end(),
                                      [&](const Token& token) { return token.name == name; });
      if (found != tokens.end()) {
        named |= found->bits;
      } else if (std::find(foreign.begin(), foreign.end(), name) == foreign.end()) {
        return Status::invalid_usage(
            "{} names '{}', which is neither an algorithm nor a protocol of NCCL or of this "
            "library. For {} it may name {}",
            variable, name, function, names_of(tokens));
      }
    }
    if (!applies || !names_any) continue;
    allowed = inverted ? all & ~named : named;
  }
  return allowed;
}

}  // namespace niccolite::planner
