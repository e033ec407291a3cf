// Workers of a rank: threads or bulk copies serve each, over tiles that are its channel's or that
// the CTAs share. The one place where this is decided: lower() writes it into the plan that the
// checker executes, and executors run the same decisions for their launches. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lowering/way.h"
#include "schedule/schedule.h"

namespace niccolite::lowering {

/// Fixed: a channel's worker moves the tiles of its channel. Dynamic: the workers of all channels
/// share the tiles of all of them, and a worker that is free takes the next one
/// (docs/design/lowering.md).
enum class Tiles : uint8_t { Fixed, Dynamic };

enum class Mover : uint8_t { Threads, BulkCopies };

const char* name_of(Tiles tiles);
const char* name_of(Mover mover);

/// The form of a worker in its schedule, whatever a launch has. Made once, for lower() and for the
/// program (executor/program.h).
struct WorkerShape {
  uint32_t instructions = 0;
  // For a worker of one instruction:
  bool has_source = false;
  bool reads_input = false;  // the source is a block of the input
  bool reduces = false;
  bool finishes = false;
  bool only_stores = false;       // routes.h
  bool only_sends_input = false;  // routes.h
  // Connections, by the schedule's numbers, or the program's ports; of several instructions each is
  // named once.
  std::vector<int> receives{};
  std::vector<int> sends{};
  // Facts about its data:
  bool is_only_work = true;       // the rank's part has no other
  uint32_t pattern_channels = 1;  // that share the data

  /// From and to the rank's own memory.
  bool copies_only() const { return receives.empty() && sends.empty(); }
  bool passes_on() const { return !receives.empty() && !sends.empty(); }

  friend bool operator==(const WorkerShape&, const WorkerShape&) = default;
};

/// The workers of one rank's part of a schedule, channel by channel.
std::vector<WorkerShape> shapes_of(const schedule::Schedule& schedule, int rank);

/// The abilities of a launch.
struct Facilities {
  bool publishes_chunks =
      true;  // Simple; by other protocols nothing is direct, or loaded of a team
  bool has_bulk_copies = false;  // for workers that move bytes
  bool has_stages = false;       // bulk copies at least for workers that copy within the rank's
                                 // memory, and for reductions whose tiles are shared
  bool reduces = false;          // the kernel does; else it moves bytes
  bool scales_input = false;
  bool scales_result = false;         // where an instruction finishes
  bool threads_pass_on_puts = false;  // threads can pass data on from where it was put; else only
                                      // bulk copies do, and threads read slots
  bool has_counter = true;            // for the tiles of workers that only copy
};

struct WorkerPlan {
  Mover mover = Mover::Threads;
  Tiles tiles = Tiles::Fixed;
  /// One instruction at one end of one connection, which advertises a buffer and then only waits.
  bool only_advertises = false;
  /// If it passes on data that are put to it, it reads them there. Else it advertises nothing, and
  /// reads slots.
  bool takes_puts = false;
  /// It can send the input that it advertises, tile by tile (Way::Pull).
  bool serves_pulls = false;

  friend bool operator==(const WorkerPlan&, const WorkerPlan&) = default;
};

/// The plans of one rank's workers. `routes`: by the numbers of connections that the shapes have,
/// as they go in this launch. Tiles are dynamic
///  - of workers that bulk copies serve, and that send, if all that they receive is got, and all
///    that they send is put and final;
///  - of the first worker that only copies, in a kernel that does not reduce: there is one counter;
///  - of the first worker that reduces, if it receives by gets alone, and so sends as above.
std::vector<WorkerPlan> plan_workers(std::span<const WorkerShape> workers,
                                     std::span<const Route> routes, const Facilities& facilities);

/// Refuses ways that the form of the workers does not allow, whoever chose them, and plans that
/// would not be safe for such workers; it accepts all plans that plan_workers() makes. Each end of
/// a connection looks at its own worker. Executors call it before they run anything, and so does
/// the checker (check.h), which proves all ranks together. InvalidUsage, naming the worker.
Status check_workers(std::span<const WorkerShape> workers, std::span<const Route> routes,
                     std::span<const WorkerPlan> plans, const Facilities& facilities);

}  // namespace niccolite::lowering
