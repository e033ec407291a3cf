// Schedule files as anything may have written them. A schedule that is read survives another file,
// and the checker ends with a verdict.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "schedule/check.h"
#include "schedule/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace niccolite;
  const auto read = schedule::from_file({reinterpret_cast<const char*>(data), size});
  if (!read.is_ok()) return 0;
  const auto again = schedule::from_file(schedule::to_file(read.value()));
  if (!again.is_ok() || !(again.value() == read.value())) std::abort();
  // The proof's memory grows with ranks times blocks, which a short file can make huge.
  constexpr int kMost = 64;
  const schedule::Schedule& schedule = read.value();
  if (schedule.nranks <= kMost && schedule.nblocks <= kMost && schedule.scratch_blocks <= kMost)
    static_cast<void>(schedule::check(schedule));
  return 0;
}
