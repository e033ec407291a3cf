#include "executor/list_tiles.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "executor/protocol/ll.h"

namespace niccolite::executor {
namespace {

std::vector<uint32_t> tiles_of_works(const Launch& launch) {
  std::vector<uint32_t> tiles;
  for (const Work& work : launch.works) {
    const uint64_t bytes = work.partition.count * size_of(launch.type);
    tiles.push_back(static_cast<uint32_t>(divide_up(bytes, uint64_t{kListTileBytes})));
  }
  return tiles;
}

Status check_connections(const Launch& launch) {
  const Program& program = *launch.program;
  std::set<std::pair<int, bool>> ends;
  for (const Port& port : program.ports) ends.emplace(port.peer, port.is_send);
  const size_t peers = program.ports.size() / 2;
  if (launch.protocol != Protocol::LL || program.works.size() != 1 || peers == 0 ||
      peers >= kMostRanksOfListAccess || program.ports.size() != 2 * peers ||
      ends.size() != program.ports.size() || launch.ports.size() != program.ports.size() ||
      ends.contains({program.rank, true}) || ends.rbegin()->first > static_cast<int>(peers))
    return Status::internal(
        "a direct list of a program that does not connect all ranks, of rank {}", program.rank);
  return {};
}

}  // namespace

uint32_t count_list_tiles(const Launch& launch) {
  const std::vector<uint32_t> tiles = tiles_of_works(launch);
  return std::accumulate(tiles.begin(), tiles.end(), uint32_t{0});
}

std::vector<ListPosition> share_list_tiles(const Launch& launch) {
  const std::vector<uint32_t> tiles_of = tiles_of_works(launch);
  const uint64_t tiles = std::accumulate(tiles_of.begin(), tiles_of.end(), uint64_t{0});
  const uint32_t channels = launch.list_channels;
  std::vector<ListPosition> starts;
  uint32_t work = 0;
  uint64_t before = 0;  // tiles of the works before this one
  for (uint32_t channel = 0; channel < channels; ++channel) {
    const uint64_t start = channel * tiles / channels;
    while (start - before >= tiles_of[work]) before += tiles_of[work++];
    starts.push_back({static_cast<uint16_t>(work), static_cast<uint16_t>(start - before)});
  }
  starts.push_back({static_cast<uint16_t>(tiles_of.size()), 0});
  return starts;
}

uint32_t works_between(const ListPosition& first, const ListPosition& end) {
  return static_cast<uint32_t>(end.work) - first.work + (end.tile > 0 ? 1 : 0);
}

Status check_direct_list(const Launch& launch) {
  constexpr uint64_t kMostTiles = std::numeric_limits<uint16_t>::max();  // ListPosition
  TRY(check_connections(launch));
  if (scales_input(launch.type, launch.reduction))
    return Status::internal("a direct list that scales inputs, of rank {}", launch.program->rank);
  if (launch.list_operation.nranks != launch.program->nranks)
    return Status::internal("a direct list of {} ranks among {}", launch.list_operation.nranks,
                            launch.program->nranks);
  TRY(prove_list(*launch.list_access, launch.list_operation));
  const size_t works = launch.works.size();
  if (works == 0 || works > kMostDirectListWorks || launch.list_channels == 0 ||
      launch.list_channels > launch.shape.channels)
    return Status::internal("a direct list of {} works on {} of {} channels", works,
                            launch.list_channels, launch.shape.channels);
  for (const Work& work : launch.works) {
    if (work.partition.channels != 1 || work.first_channel != 0 || work.partition.count == 0)
      return Status::internal("a work of a list has {} elements on {} channels from {} on",
                              work.partition.count, work.partition.channels, work.first_channel);
    const uint64_t bytes = work.partition.count * size_of(launch.type);
    if (divide_up(bytes, uint64_t{kListTileBytes}) > kMostTiles)
      return Status::internal("a work of a direct list has {} bytes", bytes);
  }
  const uint32_t tiles = count_list_tiles(launch);
  if (launch.list_channels > tiles)
    return Status::internal("a direct list of {} channels has {} tiles for them",
                            launch.list_channels, tiles);
  const std::vector<ListPosition> starts = share_list_tiles(launch);
  for (uint32_t channel = 0; channel < launch.list_channels; ++channel) {
    const size_t addresses = size_t{2} * works_between(starts[channel], starts[channel + 1]);
    if (addresses * sizeof(uint64_t) > data_bytes(Protocol::LL, launch.shape.slot_bytes))
      return Status::internal(
          "a channel of {} works, whose addresses do not fit a slot of {} bytes", addresses / 2,
          launch.shape.slot_bytes);
  }
  return {};
}

}  // namespace niccolite::executor
