#include "cli/perf/row.h"

#include "cli/perf/collective.h"

namespace niccolite::perf {
namespace {

double scaled(const Row& row, double microseconds, double (*factor)(int nranks)) {
  if (microseconds <= 0) return 0;
  return static_cast<double>(row.bytes) / microseconds / 1e3 * factor(row.nranks);
}

}  // namespace

double algorithm_bandwidth(const Row& row, double microseconds) {
  return scaled(row, microseconds, find_collective(row.collective)->algorithm_factor);
}

double bus_bandwidth(const Row& row, double microseconds) {
  return scaled(row, microseconds, find_collective(row.collective)->bus_factor);
}

double ratio(const PlaceResult& result) {
  return result.ours.microseconds > 0 ? result.other->microseconds / result.ours.microseconds : 0;
}

}  // namespace niccolite::perf
