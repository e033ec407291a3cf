// The cost model: predicted time of one operation for each variant, and the choice of the fastest.
// A pure function of its arguments: every rank computes the same choice without a word.
//
//   time = fixed + steps * step latency + bytes that a rank sends / bandwidth
//
// with a handful of constants per machine class, measured (model.cc says where and when).
#pragma once

#include "planner/request.h"
#include "planner/settings.h"

namespace niccolite::planner {

struct Choice {
  AlgorithmId algorithm = AlgorithmId::Ring;
  executor::Protocol protocol = executor::Protocol::Simple;
  int channels = 1;         // upper bound: small data use fewer
  double microseconds = 0;  // predicted
};

/// May this variant run at all with this number of ranks?
bool is_possible(const Settings& settings, Collective collective, AlgorithmId algorithm,
                 executor::Protocol protocol);

/// Predicted time of `collective` over `bytes`: of the buffer that is cut, or of one block.
Choice predict(const Settings& settings, Collective collective, AlgorithmId algorithm,
               executor::Protocol protocol, size_t bytes);

/// The fastest allowed variant. For a PointToPoint, `bytes` is one message's, and both ends choose
/// alike. Errors: InvalidUsage when NCCL_ALGO and NCCL_PROTO leave none.
Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes);

/// Predicted time of messages that progress together: of `ends` message ends of one rank, of which
/// the busier direction moves `bytes`.
double predict_messages(const Settings& settings, executor::Protocol protocol, int ends,
                        size_t bytes);

}  // namespace niccolite::planner
