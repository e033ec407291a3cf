// The measurements of `niccolite tune`: one time for each variant and size, and their file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/devices.h"
#include "planner/prices/model.h"

namespace niccolite::tune {

using planner::buffer_bytes;
using planner::Collective;
using planner::Form;
using planner::Variant;
using planner::Workload;

/// How data go between the ranks that are measured.
enum class DataPath : uint8_t {
  Best,        // as the library has it on this machine
  Slots,       // never from user's buffer to user's buffer, as between processes
  HostMemory,  // as between GPUs that have no peer access
  Network,     // as if each rank were on a machine of its own
};

struct Point {
  Workload work;
  Variant variant;
  size_t chunk_bytes = 0;  // data of the largest chunk
  double microseconds = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

/// The time of the library's own choice, when nothing was forced.
struct OwnTime {
  Workload work;
  double microseconds = 0;
  double predicted = 0;  // by its constants at that time: ncclGroupSimulateEnd's
};

struct Measurements {
  gpu::Kind machine = gpu::Kind::Virtual;
  DataPath path = DataPath::Best;
  std::string devices;  // "4 x NVIDIA H200"
  std::string date;     // of the first of them
  std::vector<Point> points;
  std::vector<OwnTime> own;
  std::vector<std::string> failures;  // the variants that could not be measured, and why

  bool is_empty() const { return points.empty() && own.empty(); }
  /// The class of the measured machine: of more than two ranks if there are such measurements.
  planner::MachineClass machine_class() const;
};

/// Gives `settings` the values of a communicator whose data go by `path`.
void set_path(planner::Settings& settings, DataPath path);

/// Returns the settings of a communicator with so many ranks of the measured machine.
planner::Settings settings_of(const Measurements& measurements, int nranks);

/// "all_to_all" as the schedule module has it. Null pointers never.
Result<Collective> collective_named(const std::string& name);

/// The document of -J, `niccolite-tune-1`.
nlohmann::json to_json(const Measurements& measurements);

/// Adds the measurements of a file. InvalidUsage if they are of another class of machine than the
/// present ones.
Status read(const std::string& path, Measurements& measurements);

}  // namespace niccolite::tune
