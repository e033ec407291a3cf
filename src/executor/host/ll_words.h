// The words of an LL slot, as the CPU reads and writes them (layout: executor/protocol/ll.h).
//
// Every access is a relaxed atomic of a whole word: data and flag travel in the same 8 bytes, and
// nothing else is published or acquired by them. (That a slot is free to be written, and that its
// reader is done, is ordered by the head.)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "executor/protocol/ll.h"

namespace niccolite::executor::host {

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free,
              "words are shared with other processes");

/// The flag of the word that data byte `byte` of the slot lies in.
uint32_t ll_flag(const std::byte* slot, uint64_t byte);

/// Takes data bytes [offset, offset + bytes) of the slot; `offset` is a multiple of 4. False when
/// some have not arrived: `data` is then undefined.
bool ll_unpack(const std::byte* slot, uint64_t offset, uint64_t bytes, uint32_t flag,
               std::byte* data);

/// Takes words from `first` on of the `words` that a chunk has, as far as they are there in a row,
/// to where they lie in the chunk at `data`, which has room for whole words. How many it took.
uint64_t ll_take(const std::byte* slot, uint64_t first, uint64_t words, uint32_t flag,
                 std::byte* data);

/// Writes data bytes [offset, offset + bytes) of the slot; `offset` is a multiple of 4. Pads the
/// last word.
void ll_pack(std::byte* slot, uint64_t offset, uint64_t bytes, uint32_t flag,
             const std::byte* data);

/// Writes the words of a slot of `slot_bytes` bytes that `bytes` bytes of data leave unused (see
/// ll::cleans).
void ll_clean(std::byte* slot, uint64_t bytes, uint32_t slot_bytes, uint32_t flag);

}  // namespace niccolite::executor::host
