// Price: what the time of an algorithm by a protocol is computed from. Either constants that were
// fitted to measurements of that very algorithm (cost.h), or, where nobody has measured it, what
// its schedule asks of the machine (schedule/load.h) and what the machine was measured to do
// (Properties):
//
//   chain     = longest chain of one round, by its instructions and hops
//   shared    = instructions of all ranks of a machine, where they share its cores
//   latency   = fixed + chain + shared + channels * channel
//   link      = bytes * the slowest of wire, rail, link, engine, and all engines of a machine
//   filling   = further hops of the chain, a chunk each
//   transfer  = (link^4 + channel^4)^(1/4) + filling
//   time      = latency + transfer
//
// A pure function of its arguments: every rank computes the same without a word. Any thread.
#pragma once

#include <memory>

#include "planner/model.h"
#include "schedule/load.h"

namespace niccolite::planner {

class Price {
 public:
  /// Of `algorithm` among the ranks of `settings`, which has it for so many ranks.
  static Price of(const Settings& settings, const Algorithm& algorithm,
                  executor::Protocol protocol);

  /// By constants of its own?
  bool is_fitted() const { return derived_ == nullptr; }
  /// Microseconds of `work` by `variant`, whose algorithm and protocol the price is of.
  double time_of(const Settings& settings, const Workload& work, const Variant& variant) const;

  /// What the algorithm's schedule asks of the machine.
  struct Derived {
    schedule::Load load;
    schedule::Chain chain;
  };

 private:
  Cost cost_{};
  Properties properties_{};
  std::shared_ptr<const Derived> derived_;
};

/// Does `algorithm` reduce in the one order that invariant settings ask for: every element once, of
/// all ranks' inputs, ascending (schedule/order.h)? By its schedule.
bool reduces_in_one_order(const Settings& settings, const Algorithm& algorithm);

/// Is its price by constants of its own?
bool is_fitted(const Settings& settings, const Algorithm& algorithm, executor::Protocol protocol);

}  // namespace niccolite::planner
