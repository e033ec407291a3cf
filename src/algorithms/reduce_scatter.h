// Reduce-scatter algorithms. Each builds a schedule; its file holds the picture and the claim
// (cost, depth, reduction order). Pure functions: the same arguments give the same schedule on
// every rank. Any thread.
#pragma once

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

Result<schedule::Schedule> reduce_scatter_ring(int nranks, const Options& options = {});
Result<schedule::Schedule> reduce_scatter_direct(int nranks, const Options& options = {});
Result<schedule::Schedule> reduce_scatter_pat(int nranks, const Options& options = {});
Result<schedule::Schedule> reduce_scatter_hierarchical(int nranks, const Options& options = {});
/// collnet.cc
Result<schedule::Schedule> reduce_scatter_collnet_direct(int nranks, const Options& options = {});

}  // namespace niccolite::algorithms
