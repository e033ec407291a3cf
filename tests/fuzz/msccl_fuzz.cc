// Algorithms in MSCCL's XML as anything may have written them. What is imported has a verdict.
#include <cstdint>
#include <string_view>

#include "importers/msccl_xml.h"
#include "schedule/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace niccolite;
  const auto program = importers::read_msccl_xml({reinterpret_cast<const char*>(data), size});
  if (!program.is_ok()) return 0;
  // The proof's memory grows with ranks times chunks, which a short file can make huge.
  constexpr int kMost = 64;
  if (program.value().nranks > kMost || program.value().chunks > kMost) return 0;
  const auto imported = importers::to_schedule(program.value());
  if (imported.is_ok()) static_cast<void>(schedule::check(imported.value().file.schedule));
  return 0;
}
