// Point-to-point: one worker for either end of a message, so that each makes progress by itself.
//
//   0 -> 1, 2 -> 1, 1 -> 1
//
//   rank 0   input 0 -> rank 1
//   rank 1   input 0 -> output 2   |   rank 0 -> output 0   |   rank 2 -> output 1
//   rank 2   input 0 -> rank 1
//
// Claim: 1 instruction per worker, one network latency; FIFO depth >= 1. No pattern can deadlock: a
// worker waits for nothing but its message's other end, which waits for nothing but this.
//
// Workers stand by distance, (receiver - sender) modulo n, the send and the receive of a distance
// side by side: at each place of the lists all ranks address different peers.
#include "algorithms/point_to_point.h"

#include <algorithm>
#include <set>

#include "schedule/builder.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: Builder, input, output, ...

namespace {

constexpr const char* kName = "direct";

int distance_of(const Message& message, int nranks) {
  return (message.receiver - message.sender + nranks) % nranks;
}

/// The messages in question, with the numbers of their blocks.
Result<std::vector<Message>> number_blocks(int nranks, std::span<const Envelope> envelopes,
                                           const Options& options) {
  std::vector<int> sends(static_cast<size_t>(nranks)), receives(static_cast<size_t>(nranks));
  std::set<std::pair<int, int>> pairs;
  std::vector<Message> messages;
  const auto is_rank = [nranks](int rank) { return rank >= 0 && rank < nranks; };
  const auto is_built = [&](int rank) { return !options.only_rank || *options.only_rank == rank; };
  for (const auto [sender, receiver] : envelopes) {
    if (!is_rank(sender) || !is_rank(receiver))
      return Status::invalid_argument("a message goes from rank {} to rank {} of {}", sender,
                                      receiver, nranks);
    if (!is_built(sender) && !is_built(receiver)) continue;
    if (!pairs.insert({sender, receiver}).second)
      return Status::invalid_argument("two messages go from rank {} to rank {}", sender, receiver);
    messages.push_back(
        {.sender = sender,
         .receiver = receiver,
         .send_block = is_built(sender) ? sends[static_cast<size_t>(sender)]++ : -1,
         .receive_block = is_built(receiver) ? receives[static_cast<size_t>(receiver)]++ : -1});
  }
  return messages;
}

void add_workers(Builder& builder, const Message& message, int channel, const Options& options) {
  const auto [sender, receiver, send_block, receive_block] = message;
  const auto is_built = [&](int rank) { return !options.only_rank || *options.only_rank == rank; };
  if (sender == receiver) {
    builder.add_worker(sender, channel)
        .add({.source = input(send_block), .target = output(receive_block)});
    return;
  }
  if (is_built(sender)) {
    WorkerBuilder worker = builder.add_worker(sender, channel);
    worker.add({.source = input(send_block), .send_to = worker.to(receiver, options.message_tag)});
  }
  if (is_built(receiver)) {
    WorkerBuilder worker = builder.add_worker(receiver, channel);
    worker.add({.receive_from = worker.from(sender, options.message_tag),
                .target = output(receive_block)});
  }
}

}  // namespace

Result<Schedule> point_to_point(int nranks, std::span<const Envelope> envelopes,
                                const Options& options) {
  TRY(check_options(kName, nranks, kMaxRingRanks, options));
  std::vector<Message> messages = TRY(number_blocks(nranks, envelopes, options));
  std::vector<Message> by_distance = messages;
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [nranks](const Message& a, const Message& b) {
                     return distance_of(a, nranks) < distance_of(b, nranks);
                   });
  const int farthest = messages.empty() ? 0 : distance_of(by_distance.back(), nranks);
  // One rank's workers alone need no channels of the others, which may be many.
  const int nchannels = options.only_rank ? 0 : channel_of_distance(farthest) + 1;
  Builder builder({.collective = Collective::PointToPoint,
                   .algorithm = kName,
                   .nranks = nranks,
                   .nblocks = nranks,
                   .nchannels = nchannels,
                   .messages = std::move(messages)});
  for (const Message& message : by_distance)
    add_workers(builder, message, channel_of_distance(distance_of(message, nranks)), options);
  return std::move(builder).take();
}

}  // namespace niccolite::algorithms
