#include "planner/form.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "algorithms/machines.h"
#include "algorithms/workers.h"
#include "lowering/routes.h"

namespace niccolite::planner {
namespace {

using lowering::Spread;

Form form_of(const Algorithm& algorithm, Spread workers) {
  const bool is_by_instruction = workers == Spread::ByInstruction;
  const bool is_by_machine = is_by_instruction && algorithm.traits.follows_machines;
  const std::string_view suffix = is_by_instruction             ? algorithms::kByWorkers
                                  : workers == Spread::ByHalves ? algorithms::kByHalves
                                                                : "";
  return {.algorithm = &algorithm,
          .workers = workers,
          .name = algorithm.name + std::string(suffix),
          .collective = algorithm.collective,
          .min_ranks = algorithm.min_ranks,
          .max_ranks = is_by_machine ? algorithms::kMaxWorkersOfMachine
                       : is_by_instruction
                           ? std::min(algorithm.max_ranks, algorithms::kMaxWorkersRanks)
                           : algorithm.max_ranks,
          .counts_ranks_of_machine = is_by_machine};
}

/// The forms of all collectives, and the index at which each collective begins.
struct Table {
  Table() {
    for (int c = 0; c < schedule::kCollectives; ++c) {
      begins[static_cast<size_t>(c)] = all.size();
      for (const Algorithm& algorithm : algorithms::of(static_cast<Collective>(c))) {
        all.push_back(form_of(algorithm, Spread::AsBuilt));
        if (algorithm.traits.gains_by_halves) all.push_back(form_of(algorithm, Spread::ByHalves));
        if (algorithm.traits.gains_by_workers)
          all.push_back(form_of(algorithm, Spread::ByInstruction));
      }
    }
    begins.back() = all.size();
  }

  std::vector<Form> all;
  std::array<size_t, schedule::kCollectives + 1> begins{};
};

const Table& table() {
  static const Table& table = *new Table;  // never ends: threads may plan while the process does
  return table;
}

}  // namespace

bool Form::is_for(int nranks, std::span<const int> machines, bool by_team) const {
  const int most =
      by_team && workers == Spread::ByInstruction ? lowering::kMostTeamRanks : max_ranks;
  if (nranks < min_ranks || nranks > algorithm->max_ranks) return false;
  if (nranks <= most) return true;
  return counts_ranks_of_machine &&
         algorithms::Machines(nranks, {.machines = {machines.begin(), machines.end()}})
                 .most_ranks() <= most;
}

Result<schedule::Schedule> Form::build(int nranks, const algorithms::Options& options) const {
  if (workers == Spread::ByInstruction && !is_for(nranks, options.machines, /*by_team=*/true))
    return Status::invalid_argument("{} is for 1 to {} ranks{}, not {}", name,
                                    lowering::kMostTeamRanks,
                                    counts_ranks_of_machine ? " of a machine" : "", nranks);
  schedule::Schedule built = TRY(lowering::spread(TRY(algorithm->build(nranks, options)), workers));
  built.algorithm = name;
  return built;
}

algorithms::Load Form::load(int nranks) const {
  algorithms::Load load = traits().load(nranks);
  if (workers == Spread::ByHalves) load.blocks *= 2;
  return load;
}

std::span<const Form> forms() {
  const Table& known = table();
  return std::span(known.all).first(known.begins[static_cast<size_t>(Collective::PointToPoint)]);
}

std::span<const Form> forms_of(Collective collective) {
  const Table& known = table();
  const auto c = static_cast<size_t>(collective);
  return std::span(known.all).subspan(known.begins[c], known.begins[c + 1] - known.begins[c]);
}

size_t index_of(const Form& form) {
  return static_cast<size_t>(&form - forms_of(form.collective).data());
}

const Form* find_form(Collective collective, std::string_view name) {
  for (const Form& form : forms_of(collective))
    if (form.name == name) return &form;
  return nullptr;
}

const Form& form_of_messages() { return forms_of(Collective::PointToPoint).front(); }

const Form* one_step(Collective collective) {
  const Form* last = nullptr;
  for (const Form& form : forms_of(collective))
    if (form.traits().is_one_step) last = &form;
  return last;
}

std::string selector_of(const Form& form) {
  const auto is_other = [&](const Form& other) {
    return &other != &form && other.algorithm == form.algorithm;
  };
  const bool is_one_of_several = std::ranges::any_of(forms_of(form.collective), is_other);
  const bool is_plain = form.workers == Spread::AsBuilt;
  return is_one_of_several && is_plain ? form.name + std::string(algorithms::kPlain) : form.name;
}

}  // namespace niccolite::planner
