// Fuzzes topology files: what is read is written and read again to the same, and makes a graph or
// an error.
#include <cstdint>
#include <cstdlib>

#include "topology/draw.h"
#include "topology/rails.h"
#include "topology/rings.h"
#include "topology/xml.h"

using namespace niccolite;
using namespace niccolite::topology;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Result<Description> description = read_xml(text, "fuzzer");
  if (!description.is_ok()) return 0;
  const std::string once = write_xml(description.value());
  const Result<Description> again = read_xml(once, "fuzzer");
  if (!again.is_ok() || write_xml(again.value()) != once) std::abort();
  Result<Graph> graph = Graph::make(std::move(description).take());
  if (!graph.is_ok()) return 0;
  if (draw_text(*graph).empty() || draw_svg(*graph).empty()) std::abort();
  for (const std::vector<int>& ring : rings(*graph))
    if (ring.size() > graph->gpus().size()) std::abort();
  return 0;
}
