// How many channels an operation may have: the counts that the cost model should compare. Where the
// model does not know the deciding facts, they are rules here: the alignment of data, the time of
// arithmetic, and the way through host memory.
#pragma once

#include <vector>

#include "planner/choice/choice.h"
#include "planner/prices/model.h"
#include "planner/request.h"

namespace niccolite::planner {

/// The channel counts that are worth a comparison, from the settings' fewest to their most for
/// `protocol`, ascending; none where the machine has no such protocol.
std::vector<int> channel_counts(const Settings& settings, executor::Protocol protocol);
/// Returns the counts for one operation: those up to the count that suits its data, or this count
/// alone.
std::vector<int> channel_counts(const Settings& settings, executor::Protocol protocol,
                                const Workload& work);

/// True if so many bytes go from one GPU to one other through host memory that the model does not
/// know their time. Data that have left the processor's cache when the other GPU reads them come
/// late, and delay the chunks that wait for their slots.
bool is_long_way_through_host(const Settings& settings, const Workload& work);

/// Returns the channels of `choice`, which was made for the length of `request` alone, or more for
/// its arithmetic. A CTA takes longer to divide bytes than links take to carry them, so averages of
/// bytes have all channels that there are.
int channels_for_arithmetic(const Settings& settings, const Request& request, const Choice& choice);

/// The channels of `choice`, which was made for the length of a message alone, or more where
/// messages of such lengths begin anywhere.
int channels_for_alignment(const Settings& settings, size_t bytes, const Choice& choice);

}  // namespace niccolite::planner
