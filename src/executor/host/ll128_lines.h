// The lines of an LL128 slot, as the CPU reads and writes them (layout: executor/protocol/ll128.h).
//
// [line] The flag is stored with release after the data of its line, and loaded with acquire before
// them: who sees the flag of a step may read that step's data with plain loads. (That a slot is
// free to be written, and that its reader is done, is ordered by the head.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/protocol/ll128.h"

namespace niccolite::executor::host {

/// The flag of the line that data byte `byte` of the slot lies in.
uint64_t ll128_flag(const std::byte* slot, uint64_t byte);

/// Takes data bytes [offset, offset + bytes) of the slot; `offset` is a multiple of 120. False when
/// some have not arrived: `data` is then undefined.
bool ll128_unpack(const std::byte* slot, uint64_t offset, uint64_t bytes, uint64_t flag,
                  std::byte* data);

/// Writes data bytes [offset, offset + bytes) of the slot; `offset` is a multiple of 120.
void ll128_pack(std::byte* slot, uint64_t offset, uint64_t bytes, uint64_t flag,
                const std::byte* data);

}  // namespace niccolite::executor::host
