#include "diagnosis/account.h"

#include <algorithm>
#include <utility>

#include "executor/numeric.h"

namespace niccolite::diagnosis {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kMostCalls = 2 * calls::CallLog::kKept;
constexpr size_t kCallBytes = 46;
constexpr size_t kStuckBytes = 46;
constexpr size_t kMostName = 64;  // of a function
// A greater age than any process's shows that the sender does not speak our language.
constexpr uint64_t kMostAge = uint64_t{1} << 40;

void write(Writer& writer, const calls::Numbers& numbers) {
  writer.u64(numbers.count);
  writer.u64(numbers.provable);
}

calls::Numbers read_numbers(Reader& reader) {
  const uint64_t count = reader.u64();
  return {.count = count, .provable = reader.u64()};
}

void write(Writer& writer, const calls::Call& call) {
  const planner::Request& request = call.request;
  writer.u8(static_cast<uint8_t>(request.collective));
  writer.u8(static_cast<uint8_t>(request.type));
  writer.u8(static_cast<uint8_t>(request.op.operation));
  writer.u8(call.is_send ? 1 : 0);
  writer.u64(request.count);
  writer.i32(request.root);
  writer.i32(call.peer);
  writer.u16(call.settings_tag);
}

calls::Call read_call(Reader& reader) {
  const uint8_t collective = reader.u8();
  const uint8_t type = reader.u8();
  const uint8_t operation = reader.u8();
  if (collective >= schedule::kCollectives || type >= executor::kDataTypes ||
      operation > static_cast<uint8_t>(planner::Operation::PreMulSum)) {
    reader.reject("unknown collective, type or operation");
    return {};
  }
  calls::Call call;
  planner::Request& request = call.request;
  request.collective = static_cast<planner::Collective>(collective);
  request.type = static_cast<executor::DataType>(type);
  request.op.operation = static_cast<planner::Operation>(operation);
  call.is_send = reader.u8() != 0;
  request.count = reader.u64();
  request.root = reader.i32();
  call.peer = reader.i32();
  call.settings_tag = reader.u16();
  return call;
}

void write(Writer& writer, const WaitReport& wait) {
  writer.u8(static_cast<uint8_t>(wait.kind));
  writer.i32(wait.peer);
  writer.u16(wait.tag);
  writer.u64(static_cast<uint64_t>(wait.least_age.count()));
  writer.u64(static_cast<uint64_t>(wait.most_age.count()));
  writer.u32(static_cast<uint32_t>(wait.lasted.count()));
  writer.u8(wait.is_joined ? 1 : 0);
}

WaitReport read_wait(Reader& reader) {
  WaitReport wait;
  wait.kind = static_cast<executor::ReportKind>(reader.u8());
  if (wait.kind > executor::kLastReportKind || !executor::is_wait(wait.kind))
    reader.reject("a wait of an unknown kind");
  wait.peer = reader.i32();
  wait.tag = reader.u16();
  const uint64_t least = reader.u64();
  const uint64_t most = reader.u64();
  if (least > most || most > kMostAge) reader.reject("impossible ages");
  wait.least_age = milliseconds(std::min(least, kMostAge));
  wait.most_age = milliseconds(std::min(most, kMostAge));
  wait.lasted = milliseconds(reader.u32());
  wait.is_joined = reader.u8() != 0;
  return wait;
}

void write(Writer& writer, const Hold& hold) {
  write(writer, hold.wait);
  writer.u32(static_cast<uint32_t>(hold.chain.size()));
  for (const Stuck& stuck : hold.chain) write(writer, stuck);
}

Hold read_hold(Reader& reader) {
  Hold hold{.wait = read_wait(reader), .chain = {}};
  const uint32_t count = reader.count(Hold::kLongest, kStuckBytes);
  if (count == 0) reader.reject("a hold by nothing");
  for (uint32_t i = 0; i < count; ++i) hold.chain.push_back(read_stuck(reader));
  return hold;
}

}  // namespace

void write(Writer& writer, const calls::LoggedCall& logged) {
  write(writer, logged.call);
  writer.u64(logged.number);
  writer.u64(logged.order);
  writer.u64(logged.launch);
}

calls::LoggedCall read_logged_call(Reader& reader) {
  calls::LoggedCall logged;
  logged.call = read_call(reader);
  logged.number = reader.u64();
  logged.order = reader.u64();
  logged.launch = reader.u64();
  return logged;
}

void write(Writer& writer, const Stuck& stuck) {
  writer.u64(stuck.communicator);
  writer.i32(stuck.rank);
  writer.u64(stuck.operation);
  write(writer, stuck.call);
  writer.i32(stuck.peer);
}

Stuck read_stuck(Reader& reader) {
  Stuck stuck;
  stuck.communicator = reader.u64();
  stuck.rank = reader.i32();
  stuck.operation = reader.u64();
  stuck.call = read_call(reader);
  stuck.peer = reader.i32();
  if (stuck.rank < 0 || stuck.peer < 0) reader.reject("a hold by a rank that cannot be");
  return stuck;
}

std::string Blocked::describe() const {
  return fmt::format("{}, which waits for another thread's {} on this communicator", function,
                     holder.empty() ? "call" : holder);
}

void write(Writer& writer, const Blocked& blocked) {
  writer.text(blocked.function);
  writer.text(blocked.holder);
}

Blocked read_blocked(Reader& reader) {
  std::string function = reader.text(kMostName);
  return {.function = std::move(function), .holder = reader.text(kMostName)};
}

Bytes Account::encode() const {
  Writer writer;
  write(writer, log.collectives);
  write(writer, log.sends);
  write(writer, log.receives);
  writer.u32(static_cast<uint32_t>(log.calls.size()));
  for (const calls::LoggedCall& call : log.calls) write(writer, call);
  writer.u8(wait ? 1 : 0);
  if (wait) write(writer, *wait);
  writer.u8(hold ? 1 : 0);
  if (hold) write(writer, *hold);
  writer.u8(is_final ? 1 : 0);
  writer.u64(host_calls);
  writer.u8(connects ? 1 : 0);
  writer.u64(progress.begun);
  writer.u8(progress.is_running ? 1 : 0);
  writer.u8(network ? 1 : 0);
  if (network) write(writer, *network);
  writer.u8(blocked ? 1 : 0);
  if (blocked) write(writer, *blocked);
  writer.u64(static_cast<uint64_t>(awake.count()));
  return std::move(writer).take();
}

Result<Account> Account::decode(std::span<const std::byte> bytes, int rank) {
  Reader reader(bytes, "the account of a rank's calls");
  Account account;
  account.rank = rank;
  account.log.collectives = read_numbers(reader);
  account.log.sends = read_numbers(reader);
  account.log.receives = read_numbers(reader);
  const uint32_t count = reader.count(kMostCalls, kCallBytes);
  for (uint32_t i = 0; i < count; ++i) account.log.calls.push_back(read_logged_call(reader));
  if (reader.u8() != 0) account.wait = read_wait(reader);
  if (reader.u8() != 0) account.hold = read_hold(reader);
  if (account.wait && account.hold) reader.reject("a rank that waits and has not begun");
  account.is_final = reader.u8() != 0;
  account.host_calls = reader.u64();
  account.connects = reader.u8() != 0;
  account.progress.begun = reader.u64();
  account.progress.is_running = reader.u8() != 0;
  if (reader.u8() != 0) account.network = transport::read_network_state(reader);
  if (reader.u8() != 0) account.blocked = read_blocked(reader);
  account.awake = milliseconds(std::min(reader.u64(), kMostAge));
  TRY(reader.finish().with_context("rank {}", rank));
  return account;
}

const calls::LoggedCall* Account::find(uint16_t tag, int peer) const {
  const auto is_it = [&](const calls::LoggedCall& logged) {
    if (tag_of(logged.call) != tag) return false;
    return peer < 0 || !logged.call.is_message() || logged.call.peer == peer;
  };
  const auto found = std::find_if(log.calls.rbegin(), log.calls.rend(), is_it);
  return found == log.calls.rend() ? nullptr : &*found;
}

}  // namespace niccolite::diagnosis
