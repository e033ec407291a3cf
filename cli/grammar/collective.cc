#include "cli/grammar/collective.h"

#include "cli/grammar/names.h"
#include "cli/grammar/numbers.h"

namespace niccolite::grammar {
namespace {

using schedule::Collective;

std::vector<Collective> all() {
  std::vector<Collective> collectives;
  for (int i = 0; i < schedule::kCollectives; ++i)
    collectives.push_back(static_cast<Collective>(i));
  return collectives;
}

}  // namespace

const char* collective_name(Collective collective) {
  switch (collective) {
    case Collective::AllToAll:
      return "alltoall";
    case Collective::PointToPoint:
      return "sendrecv";
    default:
      return schedule::name_of(collective);
  }
}

Result<Collective> parse_collective(const char* flag, const std::string& name) {
  std::vector<std::string> known;
  for (const Collective each : all()) {
    if (letters_of_collective(collective_name(each)) == letters_of_collective(name)) return each;
    known.emplace_back(collective_name(each));
  }
  return unknown_name(flag, name, known);
}

Result<std::vector<Collective>> parse_collectives(const char* flag, const std::string& list) {
  std::vector<Collective> collectives;
  for (const std::string& name : split_list(list)) {
    if (name != "all") {
      collectives.push_back(TRY(parse_collective(flag, name)));
      continue;
    }
    const std::vector<Collective> every = all();
    collectives.insert(collectives.end(), every.begin(), every.end());
  }
  return collectives;
}

}  // namespace niccolite::grammar
