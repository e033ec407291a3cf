// Schedule: the work of every rank for one collective with one algorithm, as data. Pure: no bytes,
// no threads, no protocol.
//
//   Schedule ── per rank ── Channel ── Worker ── Instruction, in order
//            └─ connections: one-way FIFOs between two ranks, each used by one worker at either end
//
// A channel maps to one CTA; a worker to a group of its warps (or to a cooperative task on a
// virtual GPU). Workers wait for each other only through connections. The executor runs `replicas`
// copies of each channel over disjoint parts of the data, and repeats a channel's workers over
// rounds, each handling one chunk of every block, until the count is covered.
//
// Who may use it: every module; it depends on base/ only. Thread safety: immutable once built.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::schedule {

enum class Buffer : unsigned char { Input, Output, Scratch };

/// The common task of the ranks, and the meaning of the blocks in their buffers. n: number of
/// ranks.
///
///   collective       input blocks          output blocks         a block is
///   AllReduce        nblocks               nblocks               a part of the one buffer
///   Reduce           nblocks               nblocks, root only    a part of the one buffer
///   Broadcast        nblocks, root only    nblocks               a part of the one buffer
///   AllGather        1                     n                     what one rank contributes
///   ReduceScatter    n                     1                     what one rank receives
///   AllToAll         n, by receiver        n, by sender          what one rank sends to one other
///   Gather           1                     n, root only          what one rank contributes
///   Scatter          n, root only          1                     what one rank receives
///   PointToPoint     one for each send     one for each receive  a message (Schedule::messages)
///
/// "Root only": other ranks have no such buffer. The blocks of one buffer are parts of equal size,
/// the last ones cut short; the others' are all of one size, except that messages differ.
/// In place (NCCL guide, "In-place Operations"): output block b is input block b where both are
/// parts of one buffer (Broadcast: at the root, and other ranks have the output alone); output
/// block `rank` is input block 0 (AllGather; Gather at the root); output block 0 is input block
/// `rank` (ReduceScatter; Scatter at the root). AllToAll and messages are never in place.
enum class Collective : unsigned char {
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Gather,
  Scatter,
  PointToPoint,
};
inline constexpr int kCollectives = 9;

/// Are the blocks parts of one buffer, rather than buffers' worth of one size each?
constexpr bool cuts_one_buffer(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::Reduce ||
         collective == Collective::Broadcast;
}
/// Has the larger buffer a block of each rank, side by side?
constexpr bool has_blocks_of_ranks(Collective collective) {
  return !cuts_one_buffer(collective) && collective != Collective::PointToPoint;
}
/// Is every result a reduction of all ranks' contributions? Otherwise bytes are only moved.
constexpr bool reduces(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::Reduce ||
         collective == Collective::ReduceScatter;
}
constexpr bool has_root(Collective collective) {
  return collective == Collective::Reduce || collective == Collective::Broadcast ||
         collective == Collective::Gather || collective == Collective::Scatter;
}

const char* name_of(Buffer buffer);
const char* name_of(Collective collective);

/// One block of a rank's buffer. How many elements a block has is the executor's affair.
struct BlockReference {
  Buffer buffer;
  int block;
  friend bool operator==(const BlockReference&, const BlockReference&) = default;
};

/// One step of a worker: takes one chunk from each connection of `receive_from`, and optionally one
/// from a local block, combines them, and stores the result locally and/or sends it. At least one
/// operand, at least one destination.
struct Instruction {
  std::vector<int> receive_from{};         // indices of Schedule::connections, in reduction order
  std::optional<BlockReference> source{};  // local operand
  int source_position =
      0;                // its place in the reduction order: before receive_from[source_position]
  bool reduce = false;  // reduce all operands; false: there is exactly one operand, which is copied
  std::optional<BlockReference> target{};  // local destination
  std::vector<int> send_to{};              // connections that get the result
  bool finish = false;                     // apply the operation's final scaling (average)
  // block whose chunk this is; -1: the block of `source`, or of `target` without a source; required
  // without both
  int chunk_of = -1;
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// The block whose chunk `instruction` handles, or -1 when nothing says it. Where all blocks have
/// one size, any block will do.
int chunk_block(const Instruction& instruction);

struct Worker {
  int weight = 1;  // share of the channel's warps, relative to the other workers
  std::vector<Instruction> instructions{};
  friend bool operator==(const Worker&, const Worker&) = default;
};

struct Channel {
  std::vector<Worker> workers;
  friend bool operator==(const Channel&, const Channel&) = default;
};

/// The place of an instruction; as text: "rank 2 channel 0 worker 1 instruction 3".
struct Position {
  int rank;
  int channel;
  int worker;
  int instruction;
};
std::string describe(const Position& position);

/// The tag of connections that only messages use. Among few ranks messages share the connections of
/// collectives (tag 0); among many they have small ones of their own, since every pair may come to
/// have one.
inline constexpr int kMessageTag = 2;

/// The network's part in a connection.
enum class Through : unsigned char {
  Nothing,     // a chunk is received as it was sent
  Reduction,   // the network's reducer: every member receives the sum of what all members send
  Gathering,   // for each chunk that it sends a member receives one of every member, in their order
  Scattering,  // the j-th of as many chunks as there are members is reduced for the j-th member
};

/// The connections through the network's reducer with one tag, in one channel, are one *group*:
/// they go round its members, from each to the next, so that every member has one end for sending
/// and one for receiving. What a member receives is what the reducer makes of the chunks of all
/// members (Through), each member's first ones, then the second ones, and so on. Members are in
/// ascending order of ranks. `rail` tells the groups of a schedule apart.
inline constexpr int kReducerTag = 1 << 14;
constexpr int reducer_tag(Through through, int rail) {
  return kReducerTag + 4 * rail + static_cast<int>(through);
}
constexpr Through through_of(int tag) {
  return tag < kReducerTag ? Through::Nothing : static_cast<Through>(tag % 4);
}

const char* name_of(Through through);

/// A one-way FIFO. All of it is used by one worker of `sender` and one worker of `receiver`, in
/// channel `channel` of both.
struct Connection {
  int sender;
  int receiver;
  int channel;
  int tag;  // tells apart the connections of one (sender, receiver, channel)
  friend bool operator==(const Connection&, const Connection&) = default;
};

/// A message of a PointToPoint schedule, moved by one worker of one instruction at either end. At
/// most one for each ordered pair; a rank may send to itself.
struct Message {
  int sender;
  int receiver;
  int send_block;     // of the sender's input: the number of the message among its sends
  int receive_block;  // of the receiver's output: its number among the receives
  friend bool operator==(const Message&, const Message&) = default;
};

struct Schedule {
  Collective collective;
  std::string algorithm;  // as the registry names it: "ring", "two_shot"
  int nranks = 0;
  int root = 0;            // of collectives that have one
  int nblocks = 0;         // parts of the one buffer; else the number of ranks
  int scratch_blocks = 0;  // blocks of the scratch buffer
  bool partial_sums =
      false;  // sums of some but not all ranks travel between ranks: rounded once per hop
  std::vector<Message> messages{};  // PointToPoint alone
  std::vector<Connection> connections;
  std::vector<std::vector<Channel>>
      ranks;  // [rank][channel]; all ranks have the same number of channels
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// Blocks that `rank` has of either buffer; 0: it has no such buffer.
int input_blocks(const Schedule& schedule, int rank);
int output_blocks(const Schedule& schedule, int rank);

}  // namespace niccolite::schedule
