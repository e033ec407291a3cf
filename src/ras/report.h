// Reports of a job, as the stock client `ncclras` prints them (reference: ras 3.4, 3.5). The text
// is for people, the JSON for programs that know NCCL's. Pure functions.
#pragma once

#include <string>

#include "ras/job.h"

namespace niccolite::ras {

struct Versions {
  std::string library;  // "2.30.7"
  int cuda = 0;         // as in 13000
  int runtime = 0, driver = 0;
};

/// The two parts of the text. The head needs no answer of another process, and ends with
/// "Communicators..." without the end of its line. `is_verbose`: lists members also of large
/// groups.
std::string text_head(const Versions& versions, const Job& known);
std::string text_rest(const Job& job, bool is_verbose);

/// A line for each operation that stands still; nothing where none does.
std::string verdicts_of(const Job& job);
/// A line for each rank that comes late to its operations, as each communicator's rank 0 tells.
std::string stragglers_of(const Job& job);

/// `timestamp`: local time, "YYYY-MM-DD HH:MM:SS".
std::string to_json(const Versions& versions, const Job& job, const std::string& timestamp);

}  // namespace niccolite::ras
