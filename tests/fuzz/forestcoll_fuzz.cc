// ForestColl's trees as anything may have written them. What is imported has a verdict.
#include <cstdint>
#include <string_view>

#include "importers/forestcoll_xml.h"
#include "schedule/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace niccolite;
  const auto flow = importers::read_forestcoll_xml({reinterpret_cast<const char*>(data), size},
                                                   schedule::Collective::AllReduce);
  if (!flow.is_ok()) return 0;
  // The proof's memory grows with ranks times chunks, which a short file can make huge.
  constexpr size_t kMostMoves = 1 << 12;
  if (flow.value().moves.size() > kMostMoves) return 0;
  const auto file = importers::to_schedule(flow.value());
  if (file.is_ok()) static_cast<void>(schedule::check(file.value().schedule));
  return 0;
}
