// Tuner: a tuner plug-in (NCCL_TUNER_PLUGIN) as one communicator's rank 0 sees it. It gets the cost
// model's predictions as NCCL's table of algorithms and protocols, and may change them. The result
// is one of the library's own variants (docs/plugins.md has the mapping). Other ranks ask rank 0
// (operations/tuning.h), so that ranks cannot choose differently, whatever their plug-ins are. If a
// plug-in fails, throws or answers nonsense, the cost model decides, and one line tells of it.
// Thread safety: any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "planner/choice/choice.h"

namespace niccolite::planner {

class Tuner {
 public:
  struct Communicator {
    uint64_t id = 0;
    int ranks = 1;
    std::span<const int> machines{};  // by rank; empty: one
  };
  /// The plug-in of this process; null: none, or it refuses.
  static std::shared_ptr<Tuner> open(const Communicator& of);
  /// Is there a library with a tuner?
  static bool is_there();
  /// Does NCCL ask plug-ins about such operations?
  static bool decides(Collective collective);

  virtual ~Tuner() = default;

  /// Returns the variant for the operation, always the same for the same arguments. Errors: as
  /// planner::choose().
  Result<Choice> choose(const Settings& settings, Collective collective, size_t bytes,
                        int most_channels);

 protected:
  /// The plug-in's word on `options`, where the cost model chooses `own`.
  virtual Choice advise(const Settings& settings, Collective collective, size_t bytes,
                        std::span<const Option> options, const Choice& own) = 0;

 private:
  std::mutex mutex_;  // plug-ins are asked by one thread at a time
  using Asked = std::tuple<Collective, size_t, int, bool, std::optional<executor::DataType>>;
  std::map<Asked, Choice> choices_;  // under mutex_
};

}  // namespace niccolite::planner
