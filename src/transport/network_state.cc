#include "transport/network_state.h"

#include <algorithm>

#include "executor/protocol/fifo.h"

namespace niccolite::transport {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostAddress = 128;
constexpr size_t kMostName = 16;
constexpr uint32_t kMostThreads = 2 * executor::kMostProxies;
constexpr size_t kTrafficBytes = 44;
constexpr size_t kThreadBytes = 22;

void write(Writer& writer, const std::optional<milliseconds>& age) {
  writer.u8(age ? 1 : 0);
  writer.u64(age ? static_cast<uint64_t>(age->count()) : 0);
}

milliseconds read_age(Reader& reader) {
  // A greater age than any process's.
  constexpr uint64_t kMostAge = uint64_t{1} << 40;
  const uint64_t age = reader.u64();
  if (age > kMostAge) reader.reject("an impossible age");
  return milliseconds(std::min(age, kMostAge));
}

std::optional<milliseconds> read_optional_age(Reader& reader) {
  const bool is_there = reader.u8() != 0;
  const milliseconds age = read_age(reader);
  return is_there ? std::optional(age) : std::nullopt;
}

}  // namespace

void NetworkState::join(NetworkState other) {
  threads.insert(threads.end(), other.threads.begin(), other.threads.end());
  const auto earlier = [](const auto& a, const auto& b) {
    return !a ? b : !b ? a : std::min(a, b);
  };
  for (Traffic& added : other.peers) {
    const auto found = std::ranges::find(peers, added.peer, &Traffic::peer);
    if (found == peers.end()) {
      peers.push_back(std::move(added));
      continue;
    }
    // The connection on which something has waited longest speaks for all.
    if (found->unacknowledged < added.unacknowledged) std::swap(*found, added);
    found->parts += added.parts;
    found->bytes += added.bytes;
    found->is_under_way |= added.is_under_way;
    if (found->broken.empty()) found->broken = added.broken;
    found->acknowledged = earlier(found->acknowledged, added.acknowledged);
    found->heard = earlier(found->heard, added.heard);
  }
  sort_out_peers();
}

void NetworkState::sort_out_peers() {
  std::ranges::stable_sort(peers, std::ranges::greater(), [](const Traffic& traffic) {
    return traffic.unacknowledged.value_or(milliseconds(-1));
  });
  if (peers.size() > kMostPeers) peers.resize(kMostPeers);
}

const Traffic* NetworkState::find(int peer) const {
  const auto found = std::ranges::find(peers, peer, &Traffic::peer);
  return found == peers.end() ? nullptr : &*found;
}

bool NetworkState::is_sending_to(int peer) const {
  const Traffic* const traffic = find(peer);
  return traffic != nullptr && (traffic->is_under_way || traffic->unacknowledged);
}

bool NetworkState::may_have_reached(int peer, milliseconds time) const {
  const Traffic* const traffic = find(peer);
  if (traffic == nullptr) return peers.size() >= kMostPeers;
  return traffic->is_under_way || traffic->unacknowledged ||
         (traffic->acknowledged && *traffic->acknowledged <= time);
}

const ProxyThread* NetworkState::stuck() const {
  const auto found = std::ranges::find_if(threads, &ProxyThread::is_stuck);
  return found == threads.end() ? nullptr : &*found;
}

bool NetworkState::comes_round() const {
  // One look asks a thread several times within microseconds. The thread cannot have answered.
  static constexpr std::chrono::milliseconds kJustAsked{50};
  return std::ranges::all_of(
      threads, [](const ProxyThread& thread) { return thread.unanswered < kJustAsked; });
}

void write(Writer& writer, const Traffic& traffic) {
  writer.i32(traffic.peer);
  writer.text(traffic.from.substr(0, kMostAddress));
  writer.text(traffic.to.substr(0, kMostAddress));
  write(writer, traffic.unacknowledged);
  writer.u64(traffic.parts);
  writer.u64(traffic.bytes);
  writer.u8(traffic.has_another_way ? 1 : 0);
  writer.u8(traffic.is_under_way ? 1 : 0);
  write(writer, traffic.acknowledged);
  write(writer, traffic.heard);
}

Traffic read_traffic(Reader& reader) {
  Traffic traffic;
  traffic.peer = reader.i32();
  if (traffic.peer < 0) reader.reject("traffic with a rank that cannot be");
  traffic.from = reader.text(kMostAddress);
  traffic.to = reader.text(kMostAddress);
  traffic.unacknowledged = read_optional_age(reader);
  traffic.parts = reader.u64();
  traffic.bytes = reader.u64();
  traffic.has_another_way = reader.u8() != 0;
  traffic.is_under_way = reader.u8() != 0;
  traffic.acknowledged = read_optional_age(reader);
  traffic.heard = read_optional_age(reader);
  return traffic;
}

void write(Writer& writer, const ProxyThread& thread) {
  writer.text(thread.name.substr(0, kMostName));
  writer.u64(static_cast<uint64_t>(thread.number));
  writer.u64(static_cast<uint64_t>(thread.unanswered.count()));
  writer.u8(static_cast<uint8_t>(thread.state));
  writer.u8(thread.is_stuck ? 1 : 0);
}

ProxyThread read_proxy_thread(Reader& reader) {
  ProxyThread thread;
  thread.name = reader.text(kMostName);
  thread.number = static_cast<int64_t>(reader.u64());
  thread.unanswered = read_age(reader);
  const uint8_t state = reader.u8();
  if (state < 'A' || state > 'z') reader.reject("a thread in an unknown state");
  thread.state = static_cast<char>(state);
  thread.is_stuck = reader.u8() != 0;
  return thread;
}

void write(Writer& writer, const NetworkState& state) {
  writer.u32(static_cast<uint32_t>(state.threads.size()));
  for (const ProxyThread& thread : state.threads) write(writer, thread);
  writer.u32(static_cast<uint32_t>(state.peers.size()));
  for (const Traffic& traffic : state.peers) write(writer, traffic);
}

NetworkState read_network_state(Reader& reader) {
  NetworkState state;
  const uint32_t threads = reader.count(kMostThreads, kThreadBytes);
  for (uint32_t i = 0; i < threads; ++i) state.threads.push_back(read_proxy_thread(reader));
  const uint32_t peers = reader.count(NetworkState::kMostPeers, kTrafficBytes);
  for (uint32_t i = 0; i < peers; ++i) state.peers.push_back(read_traffic(reader));
  return state;
}

}  // namespace niccolite::transport
