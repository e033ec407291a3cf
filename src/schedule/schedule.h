// Schedule: what every rank does for one collective with one algorithm, as data. Pure: no bytes, no
// threads, no protocol.
//
//   Schedule ── per rank ── Channel ── Lane ── Instruction, in order
//            └─ connections: one-way FIFOs between two ranks, each used by one lane at either end
//
// A channel maps to one CTA; a lane to a group of its warps (or to a cooperative task on a virtual
// GPU). Lanes wait for each other only through connections. The executor runs `replicas` copies of
// each channel over disjoint parts of the data, and repeats a channel's lanes over rounds, each
// handling one chunk of every block, until the count is covered.
//
// Who may use it: everyone; it depends on base/ only. Thread safety: immutable once built.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::schedule {

enum class Buffer : unsigned char { Input, Output, Scratch };
enum class Collective : unsigned char { AllReduce };

const char* name_of(Buffer buffer);
const char* name_of(Collective collective);

/// One block of a rank's buffer. How many elements a block has is the executor's affair.
struct BlockReference {
  Buffer buffer;
  int block;
  friend bool operator==(const BlockReference&, const BlockReference&) = default;
};

/// One step of a lane: takes one chunk from each connection of `receive_from`, and optionally one
/// from a local block, combines them, and stores the result locally and/or sends it. At least one
/// operand, at least one destination.
struct Instruction {
  std::vector<int> receive_from{};         // indices of Schedule::connections, in fold order
  std::optional<BlockReference> source{};  // local operand
  int source_position = 0;  // its place in the fold order: before receive_from[source_position]
  bool reduce = false;  // fold all operands; false: there is exactly one operand, which is copied
  std::optional<BlockReference> target{};  // local destination
  std::vector<int> send_to{};              // connections that get the result
  bool finish = false;                     // apply the operation's final scaling (average)
  int chunk_of = -1;  // block whose chunk this is; -1: that of `source`, else of `target`; needed
                      // where both are absent
};

/// The block whose chunk `instruction` handles, or -1 when nothing says it.
int chunk_block(const Instruction& instruction);

struct Lane {
  int weight = 1;  // share of the channel's warps, relative to the other lanes
  std::vector<Instruction> instructions{};
};

struct Channel {
  std::vector<Lane> lanes;
};

/// Where an instruction stands; as text: "rank 2 channel 0 lane 1 instruction 3".
struct Position {
  int rank;
  int channel;
  int lane;
  int instruction;
};
std::string describe(const Position& position);

/// A one-way FIFO. All of it is used by one lane of `sender` and one lane of `receiver`, in channel
/// `channel` of both.
struct Connection {
  int sender;
  int receiver;
  int channel;
  int tag;  // tells apart the connections of one (sender, receiver, channel)
};

struct Schedule {
  Collective collective;
  std::string algorithm;  // "ring", "one_shot", "two_shot"
  int nranks = 0;
  int nblocks =
      0;  // blocks of the input and of the output (an all-reduce: into how many parts data is cut)
  int scratch_blocks = 0;  // blocks of the scratch buffer
  bool partial_sums =
      false;  // sums of some but not all ranks travel between ranks: rounded once per hop
  std::vector<Connection> connections;
  std::vector<std::vector<Channel>>
      ranks;  // [rank][channel]; all ranks have the same number of channels
};

}  // namespace niccolite::schedule
