#include "planner/selection.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "executor/protocol/fifo.h"

namespace niccolite::planner {

using algorithms::Algorithm;
using executor::Protocol;
using schedule::Collective;

namespace {

constexpr std::string_view kFunctions[] = {"broadcast",     "reduce",    "allgather",
                                           "reducescatter", "allreduce", "alltoall",
                                           "gather",        "scatter",   "sendrecv"};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t at = 0; at <= text.size(); ++at)
    if (at == text.size() || text[at] == separator) {
      parts.push_back(text.substr(start, at - start));
      start = at + 1;
    }
  return parts;
}

}  // namespace

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
    for (const Algorithm& algorithm : algorithms::of(each)) {
      const uint32_t bit = each == collective ? 1u << algorithms::index_of(algorithm) : 0;
      add(algorithms::selector_of(algorithm), bit);
      add(std::string(algorithm.family()), bit);
    }
  };
  for (int c = 0; c < schedule::kCollectives; ++c) add_all_of(static_cast<Collective>(c));
  return tokens;
}

std::vector<Token> protocol_tokens() {
  std::vector<Token> tokens;
  for (int id = 0; id < executor::kProtocols; ++id)
    tokens.push_back({lower(executor::name_of(static_cast<Protocol>(id))), 1u << id});
  return tokens;
}

bool is_named(std::string_view text, std::string_view function) {
  for (const std::string& group : split(lower(text), ';'))
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
  for (std::string group : split(lower(text), ';')) {
    bool applies = true;
    if (const size_t colon = group.find(':'); colon != std::string::npos) {
      const std::string named = group.substr(0, colon);
      if (std::find(std::begin(kFunctions), std::end(kFunctions), named) == std::end(kFunctions))
        return Status::invalid_usage("{} names the unknown function '{}' in '{}'", variable, named,
                                     text);
      applies = named == function;
      group.erase(0, colon + 1);
    } else if (!first) {
      return Status::invalid_usage("{}: only the first group may omit the function, in '{}'",
                                   variable, text);
    }
    first = false;
    const bool inverted = !group.empty() && group.front() == '^';
    if (inverted) group.erase(0, 1);
    uint32_t named = 0;
    for (const std::string& name : split(group, ',')) {
      const auto found = std::find_if(tokens.begin(), tokens.end(),
                                      [&](const Token& token) { return token.name == name; });
      if (found != tokens.end()) {
        named |= found->bits;
      } else if (std::find(foreign.begin(), foreign.end(), name) == foreign.end()) {
        return Status::invalid_usage(
            "{} names '{}', which is neither an algorithm nor a protocol of NCCL or of this "
            "library",
            variable, name);
      }
    }
    if (!applies) continue;
    allowed = inverted ? all & ~named : named;
  }
  return allowed;
}

}  // namespace niccolite::planner
