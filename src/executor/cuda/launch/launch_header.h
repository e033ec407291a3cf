// The common parameters of every kernel, whatever the operation's data. Pure functions.
#pragma once

#include "executor/cuda/launch/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// LaunchFlags of the reduction.
uint32_t flags_of(const Launch& launch);

/// Is the kernel one that reduces, or that moves bytes? `flags`: those above.
bool reduces(const Launch& launch, uint32_t flags);

/// Bytes that all blocks of all these buffers are aligned to, at most 16; `stride_width`: those
/// that blocks are aligned to in a buffer that is.
uint8_t width_of(const Buffers& buffers, uint32_t stride_width);

/// Are connections in the host's memory?
bool is_in_host(const Launch& launch);
/// Are the other ends of some connections proxies' (protocol/relay.h)?
bool is_relayed(const Launch& launch);
/// Returns the place of the connections' counters, for kernels with an instance for each place.
Counters counters_of(const Launch& launch);

/// The buffers of all works.
std::vector<Buffers> buffers_of(const Launch& launch);

/// All of the header but the reduction's flags, and the places of tables.
void set_operation(const Launch& launch, LaunchHeader& header);

}  // namespace niccolite::executor::cuda
