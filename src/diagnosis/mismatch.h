// Proofs that ranks have made calls that do not match, with a sentence that names both calls and
// both ranks. A correct program is never accused; docs/design/failures.md says why each of
// these is a proof. Pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "diagnosis/account.h"

namespace niccolite::diagnosis {

/// Do these calls belong together: a collective with itself, a send with a receive?
bool calls_match(const calls::Call& a, const calls::Call& b);

/// Finds the first collective that both logs have and in which they differ.
std::optional<std::string> compare_collectives(const Account& a, const Account& b);

/// The first collective that one of two ranks that call nothing any more has called, and the other
/// has not.
std::optional<std::string> compare_final(const Account& a, const Account& b);

/// The first message between two ranks whose ends differ in size. Each account was given to the
/// other rank.
std::optional<std::string> compare_messages(const Account& a, const Account& b);

/// Returns the sentence for rank `a`, which in a call of tag `a_tag` got data of a call of tag
/// `b_tag` from rank `b`: a proof by itself. The logs may have forgotten the calls.
std::string describe_difference(const Account& a, uint16_t a_tag, const Account& b, uint16_t b_tag);

/// A rank whose wait, or whose hold's wait, is known. Times are the asking rank's.
struct Waiter {
  using Time = std::chrono::steady_clock::time_point;
  Account account;       // has a wait, or a hold
  Time earliest_look{};  // it was seen to wait then or later
  Time under_way{};      // it was in the operation that waits then at the latest
  Time told{};           // the account is of then or before
};

/// Judges a circle: each rank waits for the next, the last for the first. Lateness alone is no
/// proof, and none of these ranks is late. Returns the mismatch if they cannot all be in one
/// operation.
std::optional<std::string> judge_cycle(std::span<const Waiter> cycle);

/// The call that waits; null: the log does not tell.
const calls::LoggedCall* find_waiting(const Account& account);

/// Whether `late`, which waits for nothing, has made its end of a call that `waiting` has made and
/// waits in.
enum class Made : uint8_t { No, Yes, NotKnown };
Made has_made_end_of(const calls::LoggedCall& logged, const Account& waiting, const Account& late);

/// True if `late` has done its end of the call, as far as its executor tells. Ranks need not end
/// together, and the carrier of the data may be slow.
bool has_done_end_of(const calls::LoggedCall& logged, const Account& waiting, const Account& late);

/// Each rank of the path waits for the next, the last for `held`, which has a hold. True if it is
/// proved that the operation of the first cannot end before the operation that holds `held` up.
bool is_held_up(std::span<const Waiter> path, const Waiter& held);

/// Describes a circle of operations: none can end before the next one, and the last not before the
/// first.
std::string describe_circle(std::span<const Stuck> circle);

}  // namespace niccolite::diagnosis
