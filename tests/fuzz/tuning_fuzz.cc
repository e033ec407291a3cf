// Tuning files as anything may have written them: JSON, and what planner::parse_tuning() makes of
// it. Whatever is taken predicts times that are numbers.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "planner/prices/model.h"
#include "planner/prices/tuning.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace niccolite;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tuning = planner::parse_tuning(text, "fuzz");
  if (!tuning.is_ok()) return 0;
  for (const planner::CostLine& line : tuning.value().costs()) {
    const planner::Variant variant{.form = line.form, .protocol = line.protocol, .channels = 3};
    const double time = planner::predict(gpu::Kind::Cuda, line.cost,
                                         {line.form->collective, 4, 1 << 20}, variant, 16 << 10);
    if (!std::isfinite(time)) std::abort();
  }
  return 0;
}
