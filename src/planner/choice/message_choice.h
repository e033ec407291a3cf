// The choice for messages, of which both ends choose alike, and for those to the own rank.
#pragma once

#include "planner/choice/choice.h"

namespace niccolite::planner {

/// For a message whose protocol is settled.
Choice choose_for_message(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// The same to the own rank. No link bounds that, but what a CTA copies: it has as many channels as
/// its length pays for, of those that connections have, unless CTAs are to be saved.
Choice choose_for_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// Microseconds that such a copy takes beyond the shortest.
double predict_copy(const Settings& settings, executor::Protocol protocol, size_t bytes);
/// The protocol that suits it: Simple, whose bulk copies are faster than threads, or what messages
/// of its length have.
executor::Protocol protocol_of_copy(const Settings& settings, executor::Protocol of_messages,
                                    size_t bytes);

}  // namespace niccolite::planner
