// Form: an algorithm together with the workers that its schedule gets when it is lowered
// (lowering/spread.h). The planner chooses among forms; what chooses, prices, names or selects one
// reads it here. Constant data: any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "algorithms/registry.h"
#include "lowering/spread.h"

namespace niccolite::planner {

using algorithms::Algorithm;
using schedule::Collective;

struct Form {
  const Algorithm* algorithm;  // of the registry
  lowering::Spread workers;
  /// "ring", "two_shot_workers", "ring_halves": in logs, tunings and measurements.
  std::string name;
  Collective collective;
  int min_ranks;
  int max_ranks;  // in all, or of each machine
  bool counts_ranks_of_machine;

  /// The algorithm's name, which selects all its forms.
  std::string_view family() const { return algorithm->name; }
  /// Is it for so many ranks on these machines (algorithms::Options::machines)? `by_team`: in
  /// chunks by a team, whose workers may share warps (executor/cuda/launch/worker_movers.h).
  bool is_for(int nranks, std::span<const int> machines, bool by_team = false) const;
  /// The schedule, or one rank's part of it, as it is lowered. Not of messages.
  Result<schedule::Schedule> build(int nranks, const algorithms::Options& options) const;
  const algorithms::Traits& traits() const { return algorithm->traits; }
  /// Returns the load that the algorithm states, if it has Traits::load.
  algorithms::Load load(int nranks) const;
  /// Null: the algorithm is built in.
  const algorithms::Loaded* loaded() const { return algorithm->build.loaded(); }
  /// Messages have no schedule of their own (algorithms/point_to_point.h).
  bool is_of_messages() const { return algorithm->build == nullptr; }
};

/// All forms but form_of_messages(). Forms of one collective lie side by side, and so do forms
/// of one algorithm.
std::span<const Form> forms();
/// The forms of one collective.
std::span<const Form> forms_of(Collective collective);

/// The most forms that a collective may have: sets of them travel as bits.
inline constexpr size_t kMostForms = algorithms::kMostFormsOfCollective;
/// The place of a form in forms_of(form.collective).
size_t index_of(const Form& form);

/// Null when there is none of that name.
const Form* find_form(Collective collective, std::string_view name);

/// The form of messages (PointToPoint).
const Form& form_of_messages();

/// The form of `collective` in which nothing is sent but blocks of the input, to the ranks that
/// reduce or store them, with the workers that the cost model knows best; null: of messages.
const Form* one_step(Collective collective);

/// Returns the name that selects this form alone: its own, or "two_shot_plain" where the
/// algorithm's name selects several forms.
std::string selector_of(const Form& form);

}  // namespace niccolite::planner
