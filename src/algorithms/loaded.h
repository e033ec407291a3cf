// Algorithms that come from files: files of the folder NICCOLITE_ALGORITHMS, and files that the
// program has registered. They are read and proved once, with the first use of the registry, and
// stay as they are until the process ends, whatever becomes of the files. A file that cannot be
// read, or whose schedule is not proved, is left out with a warning. Thread safety: any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/options.h"
#include "schedule/file.h"

namespace niccolite::algorithms {

/// One file, for one number of ranks.
struct LoadedFile {
  std::string origin;  // its path, for messages
  schedule::File file;
  int least_depth = 1;      // slots of each FIFO with which the schedule is proved
  size_t instructions = 0;  // of the rank that has most
};

/// The files of one name: an algorithm for as many numbers of ranks.
struct Loaded {
  std::string name;
  schedule::Collective collective;
  std::map<int, LoadedFile> by_ranks;

  /// Null: there is none for so many ranks.
  const LoadedFile* find(int nranks) const;
  /// "2, 4 and 8 ranks".
  std::string describe_ranks() const;
  /// The schedule for so many ranks. Of another root than the file's: with all ranks counted on.
  Result<schedule::Schedule> build(int nranks, const Options& options) const;
};

/// Reads, judges and keeps files; the registry's are loaded_algorithms().
class LoadedSet {
 public:
  /// Adds the schedule in `text`. `is_taken`: a built-in algorithm has this name. InvalidUsage that
  /// names `origin`, and leaves the set as it was: the text is no schedule, the schedule is not
  /// proved, its name is no word of small letters, digits and '_' or is taken, or there is one of
  /// this name for so many ranks.
  Status add(const std::string& origin, std::string_view text,
             bool (*is_taken)(schedule::Collective, std::string_view));
  /// Adds all files *.json of a folder; refused ones are among failures().
  void add_folder(const std::string& path,
                  bool (*is_taken)(schedule::Collective, std::string_view));

  /// By collective and name.
  const std::vector<std::unique_ptr<Loaded>>& all() const { return all_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  std::vector<std::unique_ptr<Loaded>> all_;
  std::vector<std::string> failures_;
};

/// Adds the schedule in `text` to the algorithms of the process. InvalidUsage: loaded_algorithms()
/// was called already, or as LoadedSet::add().
Status register_text(const std::string& origin, std::string_view text,
                     bool (*is_taken)(schedule::Collective, std::string_view));

/// The set of the process. The first call adds the folder's.
const LoadedSet& loaded_algorithms(bool (*is_taken)(schedule::Collective, std::string_view));

/// `schedule` with the root `root`: every rank does what the rank before it did that is as far from
/// the old root. A reduction in one order may lose it, so that the result claims none.
schedule::Schedule with_root(schedule::Schedule schedule, int root);

}  // namespace niccolite::algorithms
