// Gathering: one all-gather among processes, as state without wires: which parts are here and where
// each goes next. Every part travels down a binomial tree that starts at its process. The process
// at distance j (counted downwards, modulo the number of processes P) passes it on to the processes
// at distance j + 2^k, for all 2^k > j. So a part is passed on as soon as it arrives, and each
// process receives each part once, from one known neighbor, over at most ceil(log2 P) hops. Missing
// parts belong to processes that have not contributed. Thread safety: none of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/wire.h"

namespace niccolite::bootstrap {

class Gathering {
 public:
  struct Part {
    std::shared_ptr<const Bytes> frame{};  // as it travels; null: not here yet
    size_t content_at = 0;                 // offset of the content in the frame
    int32_t absent_rank = -1;              // not -1: the part will never come, because of this rank
    std::string why{};
    std::span<const std::byte> content() const { return std::span(*frame).subspan(content_at); }
  };

  Gathering(uint32_t self, uint32_t nprocesses)
      : self_(self), parts_(nprocesses), missing_(nprocesses) {}

  bool has(uint32_t process) const { return parts_[process].frame != nullptr; }
  bool complete() const { return missing_ == 0; }
  const std::vector<Part>& parts() const { return parts_; }
  std::vector<uint32_t> missing() const;

  /// Keeps the part of `process`, which must be below the number of processes. Returns where it
  /// goes next: nowhere when it was here already.
  std::vector<uint32_t> add(uint32_t process, Part part);
  /// Processes whose parts reach this one through `neighbor` and are not here.
  std::vector<uint32_t> missing_through(uint32_t neighbor) const;

 private:
  uint32_t distance_from(uint32_t process) const;

  uint32_t self_;
  std::vector<Part> parts_;  // by process
  size_t missing_;
};

}  // namespace niccolite::bootstrap
