// TE-CCL's solutions as anything may have written them. An imported schedule has a verdict.
#include <cstdint>
#include <string_view>

#include "importers/teccl_json.h"
#include "schedule/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace niccolite;
  const auto solution = importers::read_teccl_json({reinterpret_cast<const char*>(data), size});
  if (!solution.is_ok()) return 0;
  // The proof's memory grows with ranks times chunks, which a short file can make huge.
  constexpr size_t kMostMoves = 1 << 12;
  if (solution.value().flow.moves.size() > kMostMoves) return 0;
  const auto file = importers::to_schedule(solution.value().flow);
  if (file.is_ok()) static_cast<void>(schedule::check(file.value().schedule));
  return 0;
}
