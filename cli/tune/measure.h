// Runs jobs, each in a process of its own.
#pragma once

#include <string>

#include "cli/tune/jobs.h"

namespace niccolite::tune {

struct Run {
  std::string library;       // empty: the one beside the command
  double limit_seconds = 0;  // begins no other job after that; 0: no limit
  std::string json_path;     // written with all results after each job; empty: nothing
};

/// Adds the results of the jobs to `measurements`, and the reasons why some fail; shows progress on
/// stderr. A job that fails is tried again without the collective that it failed in.
Status measure(std::vector<Job> jobs, const Run& run, Measurements& measurements);

}  // namespace niccolite::tune
