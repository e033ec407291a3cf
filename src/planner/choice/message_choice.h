// The choice for messages, in which both ends must agree, and for messages to the own rank.
#pragma once

#include "planner/choice/choice.h"

namespace niccolite::planner {

/// For a message whose protocol is settled.
Choice choose_for_message(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// Chooses for a message to the own rank. No link limits it, but the copy rate of a CTA does. So
/// its length decides how many of the connections' channels it gets, unless CTAs are to be saved.
Choice choose_for_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// Microseconds that such a copy takes beyond the shortest.
double predict_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// Returns the protocol for a message to the own rank: Simple, whose bulk copies are faster than
/// threads, or the protocol of other messages of its length.
executor::Protocol protocol_of_copy(const Settings& settings, executor::Protocol of_messages,
                                    size_t bytes);

}  // namespace niccolite::planner
