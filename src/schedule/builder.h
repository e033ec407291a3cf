// Builder: writes a Schedule worker by worker, so that an algorithm reads as its idea.
//
//   Builder builder({.collective = AllReduce, .algorithm = "ring", .nranks = n, .nblocks = n});
//   for (int rank = 0; rank < n; ++rank) {
//     WorkerBuilder worker = builder.add_worker(rank);
//     const Connections next = worker.to((rank + 1) % n), prev = worker.from((rank + n - 1) % n);
//     worker.add({.receive_from = prev, .source = input(rank), .reduce = true,
//                 .target = output(rank)});
//   }
//   return std::move(builder).take();
//
// Connections come into being when first named, at either end. The builder accepts anything;
// check() judges it. Thread safety: one thread per builder.
#pragma once

#include <map>
#include <span>
#include <tuple>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// Indices of Schedule::connections: the type of Instruction::receive_from and send_to.
using Connections = std::vector<int>;
inline const Connections kNone;

constexpr BlockReference input(int block) { return {Buffer::Input, block}; }
constexpr BlockReference output(int block) { return {Buffer::Output, block}; }
constexpr BlockReference scratch(int block) { return {Buffer::Scratch, block}; }

class Builder;

/// Appends instructions to one worker. Valid as long as its Builder stays where it is.
class WorkerBuilder {
 public:
  /// This worker's end of the connection from (to) `peer`. `tag` tells apart several connections
  /// between two ranks.
  Connections from(int peer, int tag = 0);
  Connections to(int peer, int tag = 0);
  /// This worker's ends of the connections from (to) many peers, in the given order.
  Connections from(std::span<const int> peers, int tag = 0);
  Connections to(std::span<const int> peers, int tag = 0);

  void add(Instruction instruction);

 private:
  friend class Builder;
  WorkerBuilder(Builder& builder, int rank, int channel, int worker)
      : builder_(builder), rank_(rank), channel_(channel), worker_(worker) {}

  Builder& builder_;
  int rank_;
  int channel_;
  int worker_;
};

class Builder {
 public:
  /// The fields of a Schedule that are known before it has workers.
  struct Head {
    Collective collective;
    std::string algorithm;
    int nranks;
    int nblocks;
    int root = 0;
    int scratch_blocks = 0;
    bool partial_sums = false;
    int nchannels = 0;  // that every rank has, though it may add no worker to some
    std::vector<Message> messages{};
  };
  explicit Builder(Head head);

  /// Adds a worker of `rank` to `channel`, after the rank's other workers there.
  WorkerBuilder add_worker(int rank, int channel = 0, int weight = 1);

  Schedule take() && { return std::move(schedule_); }

 private:
  friend class WorkerBuilder;
  int connection(int sender, int receiver, int channel, int tag);

  Schedule schedule_;
  std::map<std::tuple<int, int, int, int>, int>
      numbers_;  // (sender, receiver, channel, tag) -> index
};

}  // namespace niccolite::schedule
