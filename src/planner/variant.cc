#include "planner/variant.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace niccolite::planner {
namespace {

constexpr std::array<const char*, schedule::kCollectives> kFunctionNames{
    "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
    "AlltoAll",  "Gather", "Scatter",   "SendRecv"};

std::string upper(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char letter) {
    return static_cast<char>(std::toupper(letter));
  });
  return name;
}

}  // namespace

std::string log_name_of(const Form& form) { return upper(form.name); }

std::string log_name_of(executor::Protocol protocol) { return upper(executor::name_of(protocol)); }

const char* function_name(Collective collective) {
  return kFunctionNames[static_cast<size_t>(collective)];
}

// Source: reference plugins §1.2.
int function_number(Collective collective, bool is_send) {
  constexpr int kSend = 6, kReceive = 7;
  // In the order of Collective.
  constexpr std::array<int, schedule::kCollectives> kNumbers{4, 1, 0, 2, 3, 8, 10, 9, kReceive};
  const bool sends = is_send && collective == Collective::PointToPoint;
  return sends ? kSend : kNumbers[static_cast<size_t>(collective)];
}

std::string log_name_of(const Variant& variant) {
  if (!variant.by_team) return log_name_of(*variant.form);
  return variant.form->traits().follows_machines ? "NVLS_TREE" : "NVLS";
}

std::string describe(const Variant& variant) {
  std::string text = fmt::format("{}{} {} {}", variant.form->name, variant.by_team ? " NVLS" : "",
                                 executor::name_of(variant.protocol), variant.channels);
  if (variant.parts > 1) text += fmt::format(" /{}", variant.parts);
  return text;
}

}  // namespace niccolite::planner
