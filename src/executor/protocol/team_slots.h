// TeamSlots: the memory that each rank of a multicast team has for connections by it, alike on all
// of them: slots of chunks (Simple), and slots of words (LL), which never lie in one place, because
// a word's flag has to be older than the word, and other bytes may be anything. By the host alone.
//
//   [owner][place] slots of chunks, then [owner][place] slots of words
//     owner   the rank that stores to all, or loads of all, by its number on its machine
//     place   lowering::Routes::tag_in_program() of its connections; words have stores alone
//
// Thread safety: values.
#pragma once

#include "executor/protocol/fifo.h"
#include "lowering/routes.h"

namespace niccolite::executor {

struct TeamSlots {
  FifoShape chunks;  // of each connection
  FifoShape words;
  friend bool operator==(const TeamSlots&, const TeamSlots&) = default;

  const FifoShape& of(Protocol protocol) const { return protocol == Protocol::LL ? words : chunks; }
  size_t bytes(int members) const {
    return static_cast<size_t>(members) * (lowering::kTeamPlaces * chunks.slots_bytes() +
                                           lowering::kMostTeamTags * words.slots_bytes());
  }
  /// Where the slots of an owner's connections with this tag of a program begin.
  size_t offset(Protocol protocol, int members, int owner, int tag) const {
    const bool is_of_words = protocol == Protocol::LL;
    const int places = is_of_words ? lowering::kMostTeamTags : lowering::kTeamPlaces;
    const auto before = static_cast<size_t>(owner * places + tag - lowering::kFirstTeamTag);
    const size_t chunks_before =
        is_of_words ? static_cast<size_t>(members * lowering::kTeamPlaces) : before;
    return chunks_before * chunks.slots_bytes() + (is_of_words ? before * words.slots_bytes() : 0);
  }
};

}  // namespace niccolite::executor
