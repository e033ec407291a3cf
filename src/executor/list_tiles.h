// The tiles of a list over buffers that all ranks reach (list_access.h), shared out over the
// channels of its launch; equal on all ranks, whatever their executors.
#pragma once

#include <vector>

#include "executor/launch.h"

namespace niccolite::executor {

/// Tiles of all works of a list with Launch::list_access.
uint32_t count_list_tiles(const Launch& launch);

/// Returns the begin of each of Launch::list_channels, and behind them the end of the last: all
/// have as many tiles, or one more. The launch has as many tiles as channels.
std::vector<ListPosition> share_list_tiles(const Launch& launch);

/// Returns the number of works that the channel between these two positions takes part in.
uint32_t works_between(const ListPosition& first, const ListPosition& end);

/// Can the list be carried out: is its access proved (prove_list()), are there works, one
/// connection each way to each other rank, a tile for each channel, and room for the addresses of a
/// channel's works in a slot? Errors: Internal.
Status check_direct_list(const Launch& launch);

}  // namespace niccolite::executor
