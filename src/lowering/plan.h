// AccessPlan: a schedule lowered to the steps that really run. It says for every operand and
// destination of every instruction how the bytes go, and holds the events that make that safe, as
// data: each worker is a list of steps, which the checker executes (check.h).
//
//   schedule      who needs what from whom              schedule/schedule.h
//   routes        how bytes may go over a connection    routes.h
//   access plan   how they go, with these links         here
//   program       the same of one rank, compact         executor/program.h
//
// A *direct put* and a *direct get* begin with an advertisement: the rank whose buffer it is tells
// the other one, once its kernel runs, where the buffer lies. Until then its user may use the
// buffer, and from the end of that kernel on again:
//
//   put:  receiver                          sender
//         Advertise  -------- where ------> TakeAdvertisement
//         AwaitArrival <------------------- Move (stores there), Announce
//
//   get:  sender                            receiver
//         Advertise  -------- where ------> TakeAdvertisement
//         AwaitRelease <------------------- Move (reads there), Release
//
//   pull: sender                            receiver
//         Advertise  -------- where ------> TakeAdvertisement
//         ServePulls <------- which ------- Request         a get whose bytes the sender stores to
//                    --------- tile ------> AwaitArrival    slots, tile by tile, on request
//                    <--------------------- Move, Release
//
// A *team* (gpu/multicast.h) has slots of all ranks of a machine at one address. Whoever stores
// there has the credit of every other rank, and announces the chunk to each; whoever loads there
// waits for the chunk of every other rank, puts its own operand in its own slot (Stage), and gives
// credit to each. So slots are used as ever, and the proof for slots holds for slots of teams.
//
//   team store: sender                        each other rank of its machine
//         AwaitCredit (of all) <------------- GiveCredit
//         Move (stores to all), Announce ---> AwaitArrival, Move (reads its own slot)
//
//   team load:  each other rank               receiver
//         Move (to its own slot), Announce -> Stage, AwaitArrival (of all)
//         AwaitCredit <---------------------- Move (loads the reduction of all slots), GiveCredit
//
// Where the team reaches the ranks' windows, and all ranks pass one place of one window, nothing
// goes through slots. A *team put* and a *team get* have the events of a direct put and of a direct
// get with every other rank of the machine, and one move:
//
//   team put:   each other rank               sender
//         Advertise  -------- where --------> TakeAdvertisement (of all)
//         AwaitArrival <--------------------- Move (stores once, to all outputs), Announce (to all)
//
//   team get:   each other rank               receiver
//         Advertise  -------- where --------> TakeAdvertisement (of all)
//         AwaitRelease <--------------------- Move (loads the reduction of all inputs), Release
//
// A store reaches the sender's own output, too, and a load its own input. So the place must be the
// same on all ranks, as the contract of windows says; executors compare it, and report a rank that
// has another one.
//
// An advertisement may be of nothing: the buffer cannot be reached, or is to be scaled first. Then
// the bytes go through slots; the advertisement that was taken still says so.
//
// An aborted worker does the steps of `abort` from wherever it is: its user may free the buffers as
// soon as the rank's kernel has ended.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lowering/routes.h"
#include "lowering/workers.h"
#include "schedule/schedule.h"

namespace niccolite::lowering {

enum class Event : uint8_t {
  // For connections that put, get or pull:
  Advertise,          // tells the peer Step::memory, or nothing
  TakeAdvertisement,  // waits for the peer's, and takes it: it cannot be withdrawn any more
  Request,            // asks for all tiles that this worker takes
  ServePulls,         // stores tiles to slots as they are asked for, until there is a release
  Release,            // tells the peer that its buffer is needed no more
  AwaitRelease,
  // For all connections:
  AwaitArrival,  // waits for a chunk in a slot, for all puts, or for requested tiles
  AwaitCredit,   // waits for a free slot
  Stage,         // of a team load: stores the local operand to the own slot
  Move,          // the instruction: reads its operands, stores to its destinations
  Announce,      // tells the receiver that a slot is full, or that all is put
  GiveCredit,    // tells the sender that a slot is free
  // For aborted workers:
  Withdraw,    // takes the own advertisement back, if nobody has taken it
  Leave,       // tells the peer, whose advertisement was taken, that nothing is done there any more
  AwaitLeave,  // unless withdrawn: waits until all is done, or the peer has left
};
const char* name_of(Event event);

struct Step {
  Event event;
  int connection = -1;   // all but Move
  int instruction = -1;  // Move, Stage
  Way way = Way::Slot;   // AwaitArrival, Announce: of the connection
  Tiles tiles{};         // Move, Request, AwaitArrival after a request: which tiles
  std::optional<schedule::BlockReference> memory{};  // Advertise; none: through slots

  friend bool operator==(const Step&, const Step&) = default;
};

/// How the bytes of one instruction go, in the order of its connections. Its local operand and its
/// local destination are in the rank's own memory; a destination that an operand is put to holds it
/// already.
struct Accesses {
  std::vector<Way> receives{};
  std::vector<Way> sends{};
};

struct LoweredWorker {
  WorkerPlan plan{};
  std::vector<Accesses> accesses{};  // by instruction
  std::vector<Step> steps{};
  std::vector<Step> abort{};
};

/// A connection in the launches that the plan is of.
struct LoweredConnection {
  Way way = Way::Slot;
  bool is_final = false;
  /// Its ends make and take an advertisement, though perhaps of nothing.
  bool has_advertisement = false;
  bool is_get = false;  // the sender advertises; else the receiver does

  /// The route before buffers are refused: workers are planned for it.
  Route planned() const {
    if (!has_advertisement) return {.way = way};
    if (uses_team(way)) return {.way = is_get ? Way::TeamGet : Way::TeamPut};
    return {.way = is_get ? Way::DirectGet : Way::DirectPut, .is_final = is_final};
  }
};

struct AccessPlan {
  schedule::Schedule schedule;
  Routes routes;
  Facilities facilities;                       // of all ranks; of one: facilities_of()
  std::vector<int> machines;                   // Capabilities::machines
  std::vector<LoweredConnection> connections;  // by the schedule's number
  std::vector<std::vector<std::vector<LoweredWorker>>>
      workers;  // [rank][channel][worker of the schedule]
};

struct Capabilities {
  Facilities facilities{.has_bulk_copies = true, .has_stages = true};
  std::vector<Link> links{};    // by connection; empty: all can do all
  std::vector<bool> refused{};  // by connection: the buffer cannot be reached in this operation, so
                                // that its rank advertises nothing; empty: none
  std::vector<int> machines{};  // of each rank; empty: one. Between them nothing is direct
  bool pulls = false;           // reductions with dynamic tiles pull instead of getting
  bool has_team = false;        // the ranks of each machine have one, and so has every link
  bool has_windows = false;     // which reaches their windows
};

/// LoweredConnection::planned() of all.
std::vector<Route> planned_routes(const AccessPlan& plan);

/// `facilities`, for the workers of one rank, whose shapes these are.
Facilities facilities_of(const schedule::Schedule& schedule, std::span<const WorkerShape> shapes,
                         Facilities facilities);

/// The plan of a whole schedule, whose form is right (schedule/check.h). InvalidArgument when
/// `capabilities` is of another schedule.
Result<AccessPlan> lower(const schedule::Schedule& schedule, const Capabilities& capabilities);

/// The second half of lower(): writes the accesses and steps of all workers, as the plan's
/// connections and WorkerPlans say. A test that changes these calls it before check().
void write_steps(AccessPlan& plan);

}  // namespace niccolite::lowering
