#include "planner/variant.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "algorithms/registry.h"

namespace niccolite::planner {
namespace {

struct Name {
  const char* text;
  AlgorithmId family;
};
constexpr std::array<Name, kAlgorithms> kNames{
    {{"ring", AlgorithmId::Ring},
     {"ring_strands", AlgorithmId::Ring},
     {"direct", AlgorithmId::Direct},
     {"direct_lanes", AlgorithmId::Direct},
     {"one_shot", AlgorithmId::OneShot},
     {"two_shot", AlgorithmId::TwoShot},
     {"two_shot_lanes", AlgorithmId::TwoShot},
     {"pat", AlgorithmId::Pat},
     {"scatter_gather", AlgorithmId::ScatterGather},
     {"scatter_gather_lanes", AlgorithmId::ScatterGather}}};
static_assert(kNames.back().text != nullptr);

constexpr std::array<const char*, schedule::kCollectives> kFunctionNames{
    "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
    "AlltoAll",  "Gather", "Scatter",   "SendRecv"};

bool has_siblings(AlgorithmId id) {
  const AlgorithmId family = family_of(id);
  return std::count_if(kNames.begin(), kNames.end(),
                       [&](const Name& name) { return name.family == family; }) > 1;
}

}  // namespace

const char* name_of(AlgorithmId id) { return kNames[static_cast<size_t>(id)].text; }
AlgorithmId family_of(AlgorithmId id) { return kNames[static_cast<size_t>(id)].family; }

std::string selector_of(AlgorithmId id) {
  std::string name = name_of(id);
  if (id == family_of(id) && has_siblings(id)) name += "_plain";
  return name;
}

std::string log_name_of(AlgorithmId id) {
  std::string name = name_of(id);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return name;
}

const char* function_name(Collective collective) {
  return kFunctionNames[static_cast<size_t>(collective)];
}

bool has_algorithm(Collective collective, AlgorithmId id) {
  if (collective == Collective::PointToPoint) return id == AlgorithmId::Direct;
  return algorithms::find(collective, name_of(id)) != nullptr;
}

std::string describe(const Variant& variant) {
  std::string text = fmt::format("{} {} {}", name_of(variant.algorithm),
                                 executor::name_of(variant.protocol), variant.channels);
  if (variant.parts > 1) text += fmt::format(" /{}", variant.parts);
  return text;
}

}  // namespace niccolite::planner
