// The messages of bootstrap, with their encoding. The first byte of a frame is its type. A process
// sends Join, Ready and Failed to the root and hears Host, Awaited, Place and Refused; all other
// messages travel between processes. The encoding uses base/wire.h. Decoders take a Reader behind
// the type byte and reject impossible values; `encode()` includes the type byte. Thread safety:
// plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/process.h"
#include "base/status.h"
#include "base/wire.h"

namespace niccolite::bootstrap {

inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr uint32_t kMaxRanks = 1u << 20;
inline constexpr size_t kMaxHostBytes = 256;
inline constexpr size_t kMaxTextBytes = 4096;
inline constexpr size_t kMaxContribution = 64u << 10;  // of one rank to an all-gather
inline constexpr size_t kMaxMessage = 16u << 20;       // of send() and request()

enum class MessageType : uint8_t {
  Join = 1,
  Assignment,
  Refused,
  Ready,
  Failed,
  Host,
  Awaited,  // with the root
  Gather = 16,
  GatherAbsent,
  Data,
  Request,
  Response,
  Left,
  Lost,
  Goodbye,
  InGroup,
  Survive,  // between processes
};

namespace messages {

/// Whom a message concerns, for people: "process 4711 on host a12".
struct Origin {
  ProcessId process;
  std::string host;
  std::string text() const { return fmt::format("process {} on host {}", process.number, host); }
  static Origin of_this_process();
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// One rank of the sending process has come.
struct Join {
  uint32_t version = kProtocolVersion;
  int32_t rank = 0;
  int32_t nranks = 0;
  uint64_t milliseconds_left = 0;  // until its deadline
  Address session;                 // where the process listens for other processes
  uint64_t number = 0;             // of the process, in handshakes
  Origin origin;
  Bytes encode() const;
  static Result<Join> decode(Reader& reader);
};

struct Neighbor {
  uint32_t process = 0;
  uint64_t number = 0;
  Address address;
};

/// All ranks have come: the process' place in the order of processes, and its neighbors.
struct Assignment {
  uint32_t process = 0;
  uint32_t nprocesses = 0;
  int32_t nranks = 0;
  std::vector<Neighbor> neighbors;
  Bytes encode() const;
  static Result<Assignment> decode(Reader& reader);
};

/// The rendezvous failed. `missing` is not empty when ranks did not come in time: each rank then
/// words its own message.
struct Refused {
  Code code = Code::RemoteError;
  int32_t peer = -1;
  std::string text;
  std::vector<int32_t> missing;
  Bytes encode() const;
  static Result<Refused> decode(Reader& reader);
};

/// Which ranks live in the process of the root, as far as they have come: whom to name when it
/// ends.
struct Host {
  Origin origin;
  std::vector<int32_t> ranks;  // ascending
  Bytes encode() const;
  static Result<Host> decode(Reader& reader);
};

/// A wait of this length is worth a line in the logs of all waiting ranks, like a long wait of an
/// operation (diagnosis/watch.h).
inline constexpr std::chrono::seconds kLongWait{1};

/// The ranks for which the rendezvous has waited for a while: news for the logs of the waiting
/// ranks, and no failure.
struct Awaited {
  enum class Why : uint8_t { NotJoined, Stopped };
  Why why = Why::NotJoined;
  std::vector<int32_t> ranks;  // ascending
  Origin origin;               // Stopped: their process
  Bytes encode() const;
  static Result<Awaited> decode(Reader& reader);
  /// "rank 3 has not joined ...".
  std::string text() const;
};

/// A process gives up before it was ready, or a request failed at its handler.
struct Failed {
  Code code = Code::RemoteError;
  int32_t peer = -1;
  std::string text;
  Bytes encode() const;
  static Result<Failed> decode(Reader& reader);
  static Failed of(const Status& status);
  Status status() const;
};

/// A process's contribution to the first all-gather.
struct ProcessEntry {
  uint64_t number = 0;
  Address address;
  Origin origin;
  std::vector<int32_t> ranks;  // ascending
  Bytes encode() const;        // without a type: it is the content of a Gather
  static Result<ProcessEntry> decode(Reader& reader);
};

/// One process' part of all-gather `sequence`: forwarded along a binomial tree that starts at
/// `process`.
struct Gather {
  uint64_t sequence = 0;
  uint32_t process = 0;
  std::span<const std::byte> content;  // points into the frame
  Bytes encode() const;
  static Result<Gather> decode(Reader& reader);
};

/// Instead of a Gather: that part will never come, because of `rank`.
struct GatherAbsent {
  uint64_t sequence = 0;
  uint32_t process = 0;
  int32_t rank = 0;
  std::string why;
  Bytes encode() const;
  static Result<GatherAbsent> decode(Reader& reader);
};

/// The content of a Gather after the first: the contributions of the process's ranks.
struct Contribution {
  int32_t rank = 0;
  std::span<const std::byte> bytes;
};
Bytes encode_contributions(std::span<const Contribution> contributions);
Result<std::vector<Contribution>> decode_contributions(Reader& reader);

struct Data {
  int32_t from = 0;
  int32_t to = 0;
  uint32_t tag = 0;
  std::span<const std::byte> content;
  Bytes encode() const;
  static Result<Data> decode(Reader& reader);
};

struct Request {
  int32_t from = 0;
  int32_t to = 0;
  uint64_t call = 0;
  std::span<const std::byte> content;
  Bytes encode() const;
  static Result<Request> decode(Reader& reader);
};

struct Response {
  uint64_t call = 0;
  bool succeeded = false;
  Failed failure;                      // when it did not
  std::span<const std::byte> content;  // when it did
  Bytes encode() const;
  static Result<Response> decode(Reader& reader);
};

/// Ranks of the sending process that have left gracefully, while other ranks of the process stay.
struct Left {
  std::vector<int32_t> ranks;
  Bytes encode() const;
  static Result<Left> decode(Reader& reader);
};

/// A process ended without goodbye; flooded to all.
struct Lost {
  uint32_t process = 0;
  int32_t rank = -1;  // its lowest; -1: the sender does not know its ranks yet
  std::string who;    // "rank 3 (process 4711 on host a12)"
  std::string why;
  Bytes encode() const;
  static Result<Lost> decode(Reader& reader);
};

/// One process' part of an agreement to go on without some ranks, forwarded as a Gather is. With a
/// failure it says that the attempt has failed.
struct Survive {
  uint32_t number = 0;  // of the attempt, among the attempts with this list
  uint32_t process = 0;
  uint32_t epoch = 0;                  // agreements that the process had come to before
  std::vector<int32_t> excluded;       // ascending
  Failed failure;                      // Ok: none
  std::span<const std::byte> content;  // contributions; points into the frame
  Bytes encode() const;
  static Result<Survive> decode(Reader& reader);
};

/// A Gather, GatherAbsent, Data, Request, Response, Left or Survive of a group that does not have
/// all ranks. Processes and ranks in it have their numbers of the group.
struct InGroup {
  uint64_t group = 0;
  std::span<const std::byte> frame;  // of the message: with its type
  Bytes encode() const;
  static Result<InGroup> decode(Reader& reader);
};

/// A message that is only a type: Ready, Goodbye.
Bytes encode_type(MessageType type);

}  // namespace messages

/// "rank 5", "ranks 5, 6", "ranks 0-99, 120 and 30 more": for people; `ranks` ascending.
std::string describe_ranks(std::span<const int32_t> ranks);

}  // namespace niccolite::bootstrap
