// Program: a collective as other projects' files have it. Each rank has thread blocks; a thread
// block is a list of steps over chunks of buffers, done in order; it receives from one rank and
// sends to one rank over FIFOs, and a step may wait for steps of other thread blocks of its rank.
//
// to_schedule() executes it symbolically and writes the Schedule that does the same:
//  - Thread blocks of a rank that wait for each other, or share a chunk that one of them writes,
//    become one worker, whose instructions are in the order of the execution. Others stay workers
//    side by side.
//  - Chunk i of every rank's block becomes pattern channel i, since no result needs chunks of two
//    numbers. Where the collective cuts one buffer, each chunk is a block of one channel.
//  - Where the collective's output cannot hold a value (the input, or a block of another number),
//    scratch does.
//  - A program that so needs deep FIFOs is written block by block instead: blocks never meet.
//  - A chunk that is received only to be added later is received when it is added, as an
//    instruction has one local operand.
// Thread safety: values.
#pragma once

#include <string>
#include <vector>

#include "schedule/file.h"
#include "schedule/schedule.h"

namespace niccolite::importers {

enum class Action : unsigned char {
  Send,
  Receive,
  Copy,
  Reduce,                 // target = target + source
  ReceiveCopySend,        // target = received; sends it
  ReceiveReduceSend,      // sends received + source
  ReceiveReduceCopy,      // target = received + source
  ReceiveReduceCopySend,  // the same, and sends it
  Nothing                 // only waits
};

bool receives(Action action);
bool sends(Action action);
bool reads_source(Action action);
bool reads_target(Action action);
bool writes_target(Action action);

struct Place {
  schedule::Buffer buffer = schedule::Buffer::Input;
  int chunk = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// A step of another thread block of the same rank, which must be over.
struct Wait {
  int block;  // its place among the rank's thread blocks
  int step;
};

struct Step {
  Action action = Action::Nothing;
  Place source{};
  Place target{};
  int count = 1;  // chunks, side by side
  std::vector<Wait> waits{};
  int line = 0;  // of the file
};

struct ThreadBlock {
  int send_to = -1;       // a rank; -1: none
  int receive_from = -1;  // the same
  int channel = 0;        // a FIFO is of a sender, a receiver and a channel
  std::vector<Step> steps{};
  int line = 0;
};

struct RankProgram {
  int input_chunks = 0;
  int output_chunks = 0;
  int scratch_chunks = 0;
  std::vector<ThreadBlock> blocks{};
};

struct Program {
  std::string name;
  schedule::Collective collective = schedule::Collective::AllReduce;
  int nranks = 0;
  int root = 0;
  int chunks = 0;  // of the larger buffer
  bool is_in_place = false;
  schedule::Use use{};
  std::vector<RankProgram> ranks{};
};

struct Imported {
  schedule::File file;
  int fifo_depth = 1;  // steps that a FIFO of the program must hold, found by trial: 1, 2, 4 ...
  size_t thread_blocks = 0;
  size_t steps = 0;
};

/// A schedule whose sums are all of one instruction promises results that depend on the inputs
/// alone; this is found by trial.
schedule::Schedule in_one_order_if_so(schedule::Schedule schedule);

/// InvalidUsage, with the line: a deadlock at any depth of FIFOs, with the circle of waits; a race,
/// with both steps; a step that reads what nobody wrote; a form that no schedule has. The schedule
/// is not proved: schedule::least_depth() does that.
Result<Imported> to_schedule(const Program& program);

}  // namespace niccolite::importers
