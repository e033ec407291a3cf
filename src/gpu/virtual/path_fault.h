// PathFault: what paths between virtual GPUs do to tests of code that must not trust them
// (NICCOLITE_VIRTUAL_FAULT): as broken peer access of real GPUs does, without an error.
#pragma once

namespace niccolite::gpu::virtual_ {

enum class PathFault : unsigned char {
  None,
  Lost,   // stores to memory of another GPU, or of another process, do not arrive
  Late,   // copies to it arrive a second later
  Zeros,  // copies from it bring zeros
};
PathFault path_fault();

}  // namespace niccolite::gpu::virtual_
