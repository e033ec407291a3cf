// The cost model: predicted time of one operation for each variant, and the choice of the fastest.
// A pure function of its arguments: every rank computes the same choice without a word.
//
//   time = fixed + steps * step latency + bytes that a rank sends / bandwidth
//
// with a handful of constants per machine class, measured (model.cc says where and when).
#pragma once

#include "planner/settings.h"

namespace niccolite::planner {

struct Choice {
  AlgorithmId algorithm = AlgorithmId::Ring;
  executor::Protocol protocol = executor::Protocol::Simple;
  int channels = 1;         // upper bound: small data use fewer
  double microseconds = 0;  // predicted
};

/// May this variant run at all with this number of ranks?
bool is_possible(const Settings& settings, AlgorithmId algorithm, executor::Protocol protocol);

/// Predicted time of an all-reduce of `bytes` per rank.
Choice predict(const Settings& settings, AlgorithmId algorithm, executor::Protocol protocol,
               size_t bytes);

/// The fastest allowed variant. Errors: InvalidUsage when NCCL_ALGO and NCCL_PROTO leave none.
Result<Choice> choose(const Settings& settings, size_t bytes);

}  // namespace niccolite::planner
