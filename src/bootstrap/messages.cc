#include "bootstrap/messages.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace niccolite::bootstrap {
namespace messages {
namespace {

Writer begin(MessageType type) {
  Writer writer;
  writer.u8(static_cast<uint8_t>(type));
  return writer;
}

// Cut rather than refused: a message for people must never make the failure it describes worse.
std::string_view bounded(std::string_view text) { return text.substr(0, kMaxTextBytes); }

int32_t read_rank(Reader& reader) {
  const int32_t rank = reader.i32();
  if (rank < 0 || rank >= static_cast<int32_t>(kMaxRanks))
    reader.reject(fmt::format("rank {}", rank));
  return rank;
}

Code read_code(Reader& reader) {
  const uint8_t code = reader.u8();
  if (code == 0 || code > static_cast<uint8_t>(Code::RemoteError))
    reader.reject(fmt::format("error code {}", code));
  return static_cast<Code>(code);
}

void write_ranks(Writer& writer, std::span<const int32_t> ranks) {
  writer.u32(static_cast<uint32_t>(ranks.size()));
  for (int32_t rank : ranks) writer.i32(rank);
}

std::vector<int32_t> read_ranks(Reader& reader) {
  std::vector<int32_t> ranks(reader.count(kMaxRanks, 4));
  for (int32_t& rank : ranks) rank = read_rank(reader);
  return ranks;
}

void write_origin(Writer& writer, const Origin& origin) {
  origin.process.encode(writer);
  writer.text(std::string_view(origin.host).substr(0, kMaxHostBytes));
}

Origin read_origin(Reader& reader) {
  Origin origin;
  origin.process = ProcessId::decode(reader);
  origin.host = reader.text(kMaxHostBytes);
  return origin;
}

void write_failed(Writer& writer, const Failed& failed) {
  writer.u8(static_cast<uint8_t>(failed.code));
  writer.i32(failed.peer);
  writer.text(bounded(failed.text));
}

Failed read_failed(Reader& reader) {
  Failed failed;
  failed.code = read_code(reader);
  failed.peer = reader.i32();
  failed.text = reader.text(kMaxTextBytes);
  return failed;
}

}  // namespace

Origin Origin::of_this_process() {
  std::array<char, kMaxHostBytes> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return {.process = this_process(), .host = host.data()};
}

Bytes encode_type(MessageType type) {
  Writer writer = begin(type);
  return std::move(writer).take();
}

Bytes Join::encode() const {
  Writer writer = begin(MessageType::Join);
  writer.u32(version);
  writer.i32(rank);
  writer.i32(nranks);
  writer.u64(milliseconds_left);
  session.encode(writer);
  writer.u64(number);
  write_origin(writer, origin);
  return std::move(writer).take();
}

// The root compares rank and nranks itself: it can name both sides of a contradiction.
Result<Join> Join::decode(Reader& reader) {
  Join join;
  join.version = reader.u32();
  join.rank = reader.i32();
  join.nranks = reader.i32();
  join.milliseconds_left = reader.u64();
  join.session = Address::decode(reader);
  join.number = reader.u64();
  join.origin = read_origin(reader);
  TRY(reader.finish());
  return join;
}

Bytes Assignment::encode() const {
  Writer writer = begin(MessageType::Assignment);
  writer.u32(process);
  writer.u32(nprocesses);
  writer.i32(nranks);
  writer.u32(static_cast<uint32_t>(neighbors.size()));
  for (const Neighbor& neighbor : neighbors) {
    writer.u32(neighbor.process);
    writer.u64(neighbor.number);
    neighbor.address.encode(writer);
  }
  return std::move(writer).take();
}

Result<Assignment> Assignment::decode(Reader& reader) {
  Assignment place;
  place.process = reader.u32();
  place.nprocesses = reader.u32();
  place.nranks = reader.i32();
  place.neighbors.resize(reader.count(64, 12));
  for (Neighbor& neighbor : place.neighbors) {
    neighbor.process = reader.u32();
    neighbor.number = reader.u64();
    neighbor.address = Address::decode(reader);
    if (neighbor.process >= place.nprocesses || neighbor.process == place.process)
      reader.reject(fmt::format("neighbor {} of {}", neighbor.process, place.nprocesses));
  }
  if (place.nprocesses > kMaxRanks || place.process >= place.nprocesses)
    reader.reject(fmt::format("place {} of {}", place.process, place.nprocesses));
  TRY(reader.finish());
  return place;
}

Bytes Refused::encode() const {
  Writer writer = begin(MessageType::Refused);
  writer.u8(static_cast<uint8_t>(code));
  writer.i32(peer);
  writer.text(bounded(text));
  write_ranks(writer, missing);
  return std::move(writer).take();
}

Result<Refused> Refused::decode(Reader& reader) {
  Refused refused;
  refused.code = read_code(reader);
  refused.peer = reader.i32();
  refused.text = reader.text(kMaxTextBytes);
  refused.missing = read_ranks(reader);
  TRY(reader.finish());
  return refused;
}

Bytes Host::encode() const {
  Writer writer = begin(MessageType::Host);
  write_origin(writer, origin);
  write_ranks(writer, ranks);
  return std::move(writer).take();
}

Bytes Awaited::encode() const {
  Writer writer = begin(MessageType::Awaited);
  writer.u8(static_cast<uint8_t>(why));
  write_ranks(writer, ranks);
  write_origin(writer, origin);
  return std::move(writer).take();
}

Result<Awaited> Awaited::decode(Reader& reader) {
  Awaited awaited;
  const uint8_t why = reader.u8();
  if (why > static_cast<uint8_t>(Why::Stopped)) reader.reject("an unknown reason");
  awaited.why = static_cast<Why>(why);
  awaited.ranks = read_ranks(reader);
  awaited.origin = read_origin(reader);
  if (awaited.ranks.empty()) reader.reject("nobody who is awaited");
  TRY(reader.finish());
  return awaited;
}

std::string Awaited::text() const {
  if (why == Why::Stopped)
    return fmt::format(
        "{} ({}) {} stopped, by a signal (SIGSTOP) or a debugger: continue it (kill -CONT)",
        ranks.empty() ? "the process that made the unique id" : describe_ranks(ranks),
        origin.text(), ranks.size() <= 1 ? "is" : "are");
  return fmt::format(
      "{} (of no process so far) {} not joined. Have all ranks been started, with the same unique "
      "id?",
      describe_ranks(ranks), ranks.size() == 1 ? "has" : "have");
}

Result<Host> Host::decode(Reader& reader) {
  Host host;
  host.origin = read_origin(reader);
  host.ranks = read_ranks(reader);
  TRY(reader.finish());
  return host;
}

Bytes Failed::encode() const {
  Writer writer = begin(MessageType::Failed);
  write_failed(writer, *this);
  return std::move(writer).take();
}

Result<Failed> Failed::decode(Reader& reader) {
  Failed failed = read_failed(reader);
  TRY(reader.finish());
  return failed;
}

Failed Failed::of(const Status& status) {
  return {.code = status.code(), .peer = status.peer(), .text = status.message()};
}

Status Failed::status() const { return Status::error(code, "{}", text).with_peer(peer); }

Bytes ProcessEntry::encode() const {
  Writer writer;
  writer.u64(number);
  address.encode(writer);
  write_origin(writer, origin);
  write_ranks(writer, ranks);
  return std::move(writer).take();
}

Result<ProcessEntry> ProcessEntry::decode(Reader& reader) {
  ProcessEntry entry;
  entry.number = reader.u64();
  entry.address = Address::decode(reader);
  entry.origin = read_origin(reader);
  entry.ranks = read_ranks(reader);
  TRY(reader.finish());
  return entry;
}

Bytes Gather::encode() const {
  Writer writer = begin(MessageType::Gather);
  writer.u64(sequence);
  writer.u32(process);
  writer.raw(content);
  return std::move(writer).take();
}

Result<Gather> Gather::decode(Reader& reader) {
  Gather gather;
  gather.sequence = reader.u64();
  gather.process = reader.u32();
  gather.content = reader.rest();
  TRY(reader.finish());
  return gather;
}

Bytes GatherAbsent::encode() const {
  Writer writer = begin(MessageType::GatherAbsent);
  writer.u64(sequence);
  writer.u32(process);
  writer.i32(rank);
  writer.text(bounded(why));
  return std::move(writer).take();
}

Result<GatherAbsent> GatherAbsent::decode(Reader& reader) {
  GatherAbsent absent;
  absent.sequence = reader.u64();
  absent.process = reader.u32();
  absent.rank = read_rank(reader);
  absent.why = reader.text(kMaxTextBytes);
  TRY(reader.finish());
  return absent;
}

Bytes encode_contributions(std::span<const Contribution> contributions) {
  Writer writer;
  writer.u32(static_cast<uint32_t>(contributions.size()));
  for (const Contribution& contribution : contributions) {
    writer.i32(contribution.rank);
    writer.blob(contribution.bytes);
  }
  return std::move(writer).take();
}

Result<std::vector<Contribution>> decode_contributions(Reader& reader) {
  std::vector<Contribution> contributions(reader.count(kMaxRanks, 8));
  for (Contribution& contribution : contributions) {
    contribution.rank = read_rank(reader);
    contribution.bytes = reader.blob(kMaxContribution);
  }
  TRY(reader.finish());
  return contributions;
}

Bytes Data::encode() const {
  Writer writer = begin(MessageType::Data);
  writer.i32(from);
  writer.i32(to);
  writer.u32(tag);
  writer.raw(content);
  return std::move(writer).take();
}

Result<Data> Data::decode(Reader& reader) {
  Data data;
  data.from = read_rank(reader);
  data.to = read_rank(reader);
  data.tag = reader.u32();
  data.content = reader.rest();
  TRY(reader.finish());
  return data;
}

Bytes Request::encode() const {
  Writer writer = begin(MessageType::Request);
  writer.i32(from);
  writer.i32(to);
  writer.u64(call);
  writer.raw(content);
  return std::move(writer).take();
}

Result<Request> Request::decode(Reader& reader) {
  Request request;
  request.from = read_rank(reader);
  request.to = read_rank(reader);
  request.call = reader.u64();
  request.content = reader.rest();
  TRY(reader.finish());
  return request;
}

Bytes Response::encode() const {
  Writer writer = begin(MessageType::Response);
  writer.u64(call);
  writer.u8(succeeded ? 1 : 0);
  if (succeeded) {
    writer.raw(content);
  } else {
    write_failed(writer, failure);
  }
  return std::move(writer).take();
}

Result<Response> Response::decode(Reader& reader) {
  Response response;
  response.call = reader.u64();
  const uint8_t succeeded = reader.u8();
  if (succeeded > 1) reader.reject(fmt::format("outcome {}", succeeded));
  response.succeeded = succeeded == 1;
  if (response.succeeded) {
    response.content = reader.rest();
  } else {
    response.failure = read_failed(reader);
  }
  TRY(reader.finish());
  return response;
}

Bytes Left::encode() const {
  Writer writer = begin(MessageType::Left);
  write_ranks(writer, ranks);
  return std::move(writer).take();
}

Result<Left> Left::decode(Reader& reader) {
  Left left;
  left.ranks = read_ranks(reader);
  TRY(reader.finish());
  return left;
}

Bytes Survive::encode() const {
  Writer writer = begin(MessageType::Survive);
  writer.u32(number);
  writer.u32(process);
  writer.u32(epoch);
  write_ranks(writer, excluded);
  writer.u8(failure.code == Code::Ok ? 0 : 1);
  if (failure.code != Code::Ok) write_failed(writer, failure);
  writer.raw(content);
  return std::move(writer).take();
}

Result<Survive> Survive::decode(Reader& reader) {
  Survive message;
  message.number = reader.u32();
  message.process = reader.u32();
  message.epoch = reader.u32();
  message.excluded = read_ranks(reader);
  message.failure.code = Code::Ok;
  if (reader.u8() != 0) {
    message.failure = read_failed(reader);
    if (message.failure.code == Code::Ok) reader.reject("a failure without a code");
  } else {
    message.content = reader.rest();
  }
  TRY(reader.finish());
  return message;
}

Bytes InGroup::encode() const {
  Writer writer = begin(MessageType::InGroup);
  writer.u64(group);
  writer.raw(frame);
  return std::move(writer).take();
}

Result<InGroup> InGroup::decode(Reader& reader) {
  InGroup message;
  message.group = reader.u64();
  message.frame = reader.rest();
  TRY(reader.finish());
  return message;
}

Bytes Lost::encode() const {
  Writer writer = begin(MessageType::Lost);
  writer.u32(process);
  writer.i32(rank);
  writer.text(bounded(who));
  writer.text(bounded(why));
  return std::move(writer).take();
}

Result<Lost> Lost::decode(Reader& reader) {
  Lost lost;
  lost.process = reader.u32();
  lost.rank = reader.i32();
  lost.who = reader.text(kMaxTextBytes);
  lost.why = reader.text(kMaxTextBytes);
  TRY(reader.finish());
  return lost;
}

}  // namespace messages

std::string describe_ranks(std::span<const int32_t> ranks) {
  constexpr int kMaxRuns = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t i = 0;
  for (int run = 0; i < ranks.size() && run < kMaxRuns; ++run) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last < i + 2) last = i;  // a run of two reads better as two numbers
    text += fmt::format("{}{}", run == 0 ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  if (i < ranks.size()) text += fmt::format(" and {} more", ranks.size() - i);
  return text;
}

}  // namespace niccolite::bootstrap
