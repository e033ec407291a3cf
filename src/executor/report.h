// Report: the message of a long wait to the host, in one word, so that it can be stored by many
// waits at once and read at any time. Host and device include it.
//
//   63..56 kind    55..32 peer    31..16 tag of the own call    15..0 tag that the peer sent,
//                                                                      or repeats of a Waiting
//
// Mismatch: the data that arrived from `peer` belong to another call. The wait goes on, as for data
// that has not arrived; the host asks the peer, tells all ranks, and aborts. Waiting: nothing has
// arrived for kReportInterval at least, which need not be wrong: the host compares the calls of
// both ranks. It is told again after every such interval while the same wait lasts, so that the
// host knows for how long it has lasted. Where it is known, the kind tells whether a receiver waits
// or a sender; one that waits for an acknowledgement has sent all its data, and the peer's proxy
// has to confirm them (protocol/user_memory.h), whatever the peer calls. A mismatch is not replaced
// by a wait, except on GPUs for some milliseconds. What the host does with reports:
// docs/design/failures.md.
#pragma once

#include <chrono>
#include <cstdint>

namespace niccolite::executor {

/// Between two reports of one wait, at least; virtual GPUs take no longer, an H200 takes three
/// times as long (ptx::kSpinsPerReport).
inline constexpr std::chrono::milliseconds kReportInterval{250};

enum class ReportKind : uint8_t {
  None,
  Waiting,
  Mismatch,
  WaitingForData,
  WaitingForCredit,
  WaitingForAcknowledgement
};
/// The last that is of a wait.
inline constexpr ReportKind kLastReportKind = ReportKind::WaitingForAcknowledgement;

constexpr bool is_wait(ReportKind kind) {
  return kind != ReportKind::None && kind != ReportKind::Mismatch;
}
constexpr bool is_wait_of_sender(ReportKind kind) {
  return kind == ReportKind::WaitingForCredit || kind == ReportKind::WaitingForAcknowledgement;
}

struct Report {
  ReportKind kind = ReportKind::None;
  uint32_t peer = 0;      // below 2^24
  uint16_t own_tag = 0;   // Work::tag
  uint16_t peer_tag = 0;  // Mismatch
  uint16_t repeats = 0;   // of a wait: its earlier reports, at least kReportInterval apart
  friend bool operator==(const Report&, const Report&) = default;
};

constexpr uint64_t encode(const Report& report) {
  return uint64_t{static_cast<uint8_t>(report.kind)} << 56 |
         uint64_t{report.peer & 0xffffffu} << 32 | uint64_t{report.own_tag} << 16 |
         (is_wait(report.kind) ? report.repeats : report.peer_tag);
}
constexpr Report decode_report(uint64_t word) {
  Report report{static_cast<ReportKind>(word >> 56), static_cast<uint32_t>(word >> 32 & 0xffffff),
                static_cast<uint16_t>(word >> 16)};
  (is_wait(report.kind) ? report.repeats : report.peer_tag) = static_cast<uint16_t>(word);
  return report;
}

}  // namespace niccolite::executor
