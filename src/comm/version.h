// The version of NCCL's API that this library speaks. api/ asserts that it equals the public
// header's.
#pragma once

namespace niccolite::comm {

inline constexpr int kMajor = 2;
inline constexpr int kMinor = 30;
inline constexpr int kPatch = 7;
inline constexpr int kVersionCode = kMajor * 10'000 + kMinor * 100 + kPatch;

}  // namespace niccolite::comm
