#include "algorithms/options.h"

#include "schedule/builder.h"

namespace niccolite::algorithms {

using schedule::input;
using schedule::output;

Status check_options(const char* algorithm, int nranks, int max_ranks, const Options& options) {
  if (nranks < 1 || nranks > max_ranks)
    return Status::invalid_argument("{} is for 1 to {} ranks, not {}", algorithm, max_ranks,
                                    nranks);
  if (options.only_rank && (*options.only_rank < 0 || *options.only_rank >= nranks))
    return Status::invalid_argument("there is no rank {} among {}", *options.only_rank, nranks);
  if (options.root < 0 || options.root >= nranks)
    return Status::invalid_argument("the root cannot be rank {} of {}", options.root, nranks);
  if (options.window < 1)
    return Status::invalid_argument("{} chunks in flight are none", options.window);
  if (!options.machines.empty() && options.machines.size() != static_cast<size_t>(nranks))
    return Status::invalid_argument("machines of {} ranks are given, of which there are {}",
                                    options.machines.size(), nranks);
  return Status::ok();
}

std::vector<int> ranks_to_build(int nranks, const Options& options) {
  if (options.only_rank) return {*options.only_rank};
  std::vector<int> ranks;
  for (int rank = 0; rank < nranks; ++rank) ranks.push_back(rank);
  return ranks;
}

std::vector<int> peers_by_distance(int rank, int nranks, int step) {
  std::vector<int> peers;
  for (int distance = 1; distance < nranks; ++distance)
    peers.push_back(((rank + step * distance) % nranks + nranks) % nranks);
  return peers;
}

schedule::Schedule alone(schedule::Collective collective, const char* algorithm) {
  schedule::Builder builder(
      {.collective = collective, .algorithm = algorithm, .nranks = 1, .nblocks = 1});
  builder.add_worker(0).add(
      {.source = input(0), .target = output(0), .finish = schedule::reduces(collective)});
  return std::move(builder).take();
}

Result<schedule::Schedule> renamed(Result<schedule::Schedule> built, const char* algorithm) {
  if (built.is_ok()) built->algorithm = algorithm;
  return built;
}

}  // namespace niccolite::algorithms
