// All-reduce algorithms. Each builds a schedule; its file holds the picture and the claim (cost,
// depth, reduction order). Pure functions: the same arguments give the same schedule on every rank.
// Any thread.
#pragma once

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

Result<schedule::Schedule> all_reduce_ring(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_one_shot(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_two_shot(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_tree(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_recursive_doubling(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_hierarchical(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_rail_trees(int nranks, const Options& options = {});
/// collnet.cc
Result<schedule::Schedule> all_reduce_collnet_direct(int nranks, const Options& options = {});
Result<schedule::Schedule> all_reduce_collnet_chain(int nranks, const Options& options = {});

}  // namespace niccolite::algorithms
