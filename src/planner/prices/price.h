// Price: the data from which the time of an algorithm by a protocol is computed. They are constants
// that were fitted to measurements of that very algorithm (cost.h). If nobody has measured it, they
// are the demand of its access plan (lowering/demand.h) and the machine's measured Properties:
//
//   chain    = instructions, connections and hops of the longest chain of one round
//   latency  = fixed + chain + further messages of a rank between machines * message +
//              instructions of the busiest rank * work + channels * channel
//   filling  = 1 + fill * hops * chunk / bytes of a channel
//   link     = bytes / the slowest of wire, rail, link and engines * (1 + crowd * channels)
//              * filling
//   channel  = bytes that a channel reads and writes, by their way, / its rates * filling
//              + further rounds * round
//   transfer = (link^4 + channel^4)^(1/4)
//   time     = latency + transfer - overlap * latency * transfer / (latency + transfer)
//
// A pure function of its arguments, made of operations that IEEE 754 rounds in one way: all ranks
// compute the same result without a message. Any thread.
#pragma once

#include <memory>
#include <span>

#include "lowering/demand.h"
#include "planner/prices/model.h"

namespace niccolite::planner {

class Price {
 public:
  /// The price of `form` among the ranks of `settings`, for which the form exists.
  static Price of(const Settings& settings, const Form& form, executor::Protocol protocol) {
    return of(settings, {.form = &form, .protocol = protocol});
  }
  /// Returns the price of a variant, whatever its channels and chunks.
  static Price of(const Settings& settings, const Variant& variant);
  /// True for constants that were fitted to this form.
  bool is_fitted() const { return demand_ == nullptr; }
  /// Microseconds of `work` by `variant`, whose form and protocol the price is of.
  double time_of(const Settings& settings, const Workload& work, const Variant& variant) const;

 private:
  Cost cost_{};
  Properties properties_{};
  std::shared_ptr<const lowering::Demand> demand_;
};

/// Returns the demand of the access plan of `form` by `protocol`, among the ranks of
/// `settings`.
std::shared_ptr<const lowering::Demand> demand_of(const Settings& settings, const Form& form,
                                                  executor::Protocol protocol,
                                                  bool by_team = false);
/// The derived price of that, in microseconds, when a chunk has at most `chunk_bytes`.
double predict(const Properties& machine, const lowering::Demand& demand, const Workload& work,
               const Variant& variant, size_t chunk_bytes);

/// Does `form` reduce in the one order that invariant settings ask for: every element once, of
/// all ranks' inputs, ascending (schedule/order.h)? By its schedule.
bool reduces_in_one_order(const Settings& settings, const Form& form);

/// Is its price by constants of its own?
bool is_fitted(const Settings& settings, const Form& form, executor::Protocol protocol);

/// Does its price decide beside measured ones: of constants of its own, or by a team of machines
/// whose tuning says what their switch does?
bool competes(const Settings& settings, const Variant& variant);
/// Are multicast teams to be made, where the GPUs have multicast? If the user names them; on
/// virtual GPUs also if the tuning says what their switch does. (No switch of real ones was ever
/// measured.)
bool wants_team(const Settings& settings);
/// The ranks of the largest machine, if all machines can have a team; else 0. `machines`: by rank.
int largest_team(std::span<const int> machines);

}  // namespace niccolite::planner
