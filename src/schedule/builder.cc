#include "schedule/builder.h"

#include "schedule/index.h"

namespace niccolite::schedule {

Connections WorkerBuilder::from(int peer, int tag) {
  return {builder_.connection(peer, rank_, channel_, tag)};
}

Connections WorkerBuilder::to(int peer, int tag) {
  return {builder_.connection(rank_, peer, channel_, tag)};
}

Connections WorkerBuilder::from(std::span<const int> peers, int tag) {
  Connections connections;
  for (const int peer : peers)
    connections.push_back(builder_.connection(peer, rank_, channel_, tag));
  return connections;
}

Connections WorkerBuilder::to(std::span<const int> peers, int tag) {
  Connections connections;
  for (const int peer : peers)
    connections.push_back(builder_.connection(rank_, peer, channel_, tag));
  return connections;
}

void WorkerBuilder::add(Instruction instruction) {
  Channel& channel = at(at(builder_.schedule_.ranks, rank_), channel_);
  at(channel.workers, worker_).instructions.push_back(std::move(instruction));
}

Builder::Builder(Head head) {
  schedule_.collective = head.collective;
  schedule_.algorithm = std::move(head.algorithm);
  schedule_.nranks = head.nranks;
  schedule_.root = head.root;
  schedule_.nblocks = head.nblocks;
  schedule_.scratch_blocks = head.scratch_blocks;
  schedule_.partial_sums = head.partial_sums;
  schedule_.messages = std::move(head.messages);
  schedule_.ranks.resize(static_cast<size_t>(head.nranks),
                         std::vector<Channel>(static_cast<size_t>(head.nchannels)));
}

WorkerBuilder Builder::add_worker(int rank, int channel, int weight) {
  std::vector<Channel>& channels = at(schedule_.ranks, rank);
  if (length(channels) <= channel) channels.resize(static_cast<size_t>(channel) + 1);
  std::vector<Worker>& workers = at(channels, channel).workers;
  workers.push_back({.weight = weight});
  return {*this, rank, channel, length(workers) - 1};
}

int Builder::connection(int sender, int receiver, int channel, int tag) {
  const auto [place, is_new] =
      numbers_.try_emplace({sender, receiver, channel, tag}, length(schedule_.connections));
  if (is_new) {
    schedule_.connections.push_back({sender, receiver, channel, tag});
  }
  return place->second;
}

}  // namespace niccolite::schedule
