// Broadcast algorithms. Each builds a schedule; its file holds the picture and the claim (cost,
// depth, reduction order). Pure functions: the same arguments give the same schedule on every rank.
// Any thread.
#pragma once

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

Result<schedule::Schedule> broadcast_ring(int nranks, const Options& options = {});
Result<schedule::Schedule> broadcast_direct(int nranks, const Options& options = {});
Result<schedule::Schedule> broadcast_scatter_gather(int nranks, const Options& options = {});
Result<schedule::Schedule> broadcast_tree(int nranks, const Options& options = {});
Result<schedule::Schedule> broadcast_hierarchical(int nranks, const Options& options = {});

}  // namespace niccolite::algorithms
