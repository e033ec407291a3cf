// How a rank notices that a peer to which it sends is silent. It replaces streams on which nothing
// comes back, asks for credit that is overdue, and reports in the pulse how long the silence is.
#include <algorithm>
#include <bit>

#include "transport/net/outbound.h"

namespace niccolite::transport::net {
namespace {

// Looks for silence are this far apart. A wait that begins between two looks is shorter at the
// first one; after three silent looks in a row nothing has been heard for two seconds.
constexpr auto kLook = std::chrono::seconds(1);
constexpr uint32_t kSilentLooks = 3;
// Credit comes within milliseconds if the receiver has room. After this time the sender requests
// credit, early enough for a verdict on a link that answers nothing.
constexpr auto kHunger = std::chrono::milliseconds(200);
constexpr uint32_t kLooksAway = 30;  // before a stream tries its own rail again: some 30 s

// 2 << that many looks: 17 minutes.
constexpr uint32_t kMostInVain = 9;

// True at the third silent look in a row, and then ever less often, so that a stopped peer is not
// tried all the time. `in_vain`: connections that silence has replaced.
bool is_time_to_act(uint32_t looks, uint32_t in_vain = 0) {
  return looks > (kSilentLooks - 1) << in_vain && std::has_single_bit(looks - 1);
}

}  // namespace

void Outbound::watch() {
  if (watch_ != 0 || is_finishing_) return;
  watch_ = loop_.after(kLook, [this] {
    watch_ = 0;
    look();
  });
}

bool Outbound::is_hungry() const {
  return std::ranges::any_of(ends_, [](const auto& end) { return end.second->waits_for_credit(); });
}

uint64_t Outbound::frames_heard() const {
  uint64_t heard = 0;
  for (const Flow& flow : flows_) heard += flow.heard;
  return heard;
}

// With nothing on its way, nothing could stay unacknowledged, whatever became of the link. So
// hunger for credit is watched, too.
void Outbound::watch_hunger() {
  if (is_finishing_) return;
  watch();
  hunger_ = loop_.after(kHunger, [this, before = frames_heard()] {
    hunger_ = 0;
    if (is_finishing_ || frames_heard() != before || !is_hungry()) return;
    ask();
    give_pulse();
  });
}

// An interface that goes down, or a wire that is cut, ends no connection for half a minute.
void Outbound::look() {
  bool is_waiting = std::exchange(has_sent_, false);
  bool any_heard = false;
  for (Flow& flow : flows_) {
    const bool is_heard = flow.heard != std::exchange(flow.heard_before, flow.heard);
    const bool should_hear = flow.connection != nullptr &&
                             (!flow.unacknowledged.empty() || flow.asked_since || !flow.is_ready);
    any_heard |= is_heard;
    is_waiting |= should_hear;
    if (is_heard || !should_hear) {
      flow.silences = 0;
      try_own_rail(flow);
      continue;
    }
    ++flow.silences;
    if (flow.link != nullptr || !is_time_to_act(flow.silences, flow.in_vain)) continue;
    // Keeps the old connection beside the new one, for a peer that is merely stopped, or slow.
    ++flow.turn;
    dial(flow);
  }
  // The credit that kernels wait for may have been lost with an interface of the peer's.
  const bool hungers = is_hungry();
  hungry_looks_ = hungers && !any_heard ? hungry_looks_ + 1 : 0;
  if (is_time_to_act(hungry_looks_)) ask();
  if (is_waiting || hungers) watch();
  give_pulse();  // silences count
}

// Each connection begins again with the part that the one before it was carrying. On a slow network
// a part takes longer than the silence after which it is replaced: the next one gets twice the
// time.
void Outbound::was_silent(Flow& flow) { flow.in_vain = std::min(flow.in_vain + 1, kMostInVain); }

void Outbound::has_brought_parts(Flow& flow) {
  // The next part needs as long.
  if (flow.silences < kSilentLooks) flow.in_vain = 0;
}

// A stream that an interface's failure has driven elsewhere goes back when it can.
void Outbound::try_own_rail(Flow& flow) {
  const bool is_away = flow.connection != nullptr && flow.path != flow.number % paths_.rails.size();
  flow.looks_away = is_away ? flow.looks_away + 1 : 0;
  if (flow.looks_away < kLooksAway || flow.link != nullptr) return;
  flow.looks_away = 0;
  flow.turn = 0;
  dial(flow);
}

void Outbound::ask() {
  for (Flow& flow : flows_) {
    if (flow.connection == nullptr || !flow.is_ready) continue;
    if (!flow.asked_since) flow.asked_since = Pulse::Clock::now();
    has_asked_ = true;
    flow.connection->send({.frame = {.kind = FrameKind::Ask}});
    flow.connection->flush();
  }
}

// Reports the flow that has waited longest for an acknowledgement, its connection or an answer.
void Outbound::give_pulse() {
  const Flow* oldest = nullptr;
  std::optional<Pulse::Clock::time_point> since;
  uint64_t parts = waiting_.size();
  uint64_t bytes = 0;
  for (const Flow& flow : flows_) {
    parts += flow.unacknowledged.size();
    bytes += flow.on_way;
    std::optional<Pulse::Clock::time_point> waits = flow.moved_at;
    if (flow.unacknowledged.empty())
      waits = flow.asked_since ? flow.asked_since : flow.dialing_since;
    if (!waits || (since && *since <= *waits)) continue;
    oldest = &flow;
    since = waits;
  }
  // Another path is tried from the third look on. At the next look the path has had its time.
  const bool has_another_way = oldest != nullptr && oldest->connection != nullptr &&
                               tried_.size() > 1 && oldest->silences <= kSilentLooks + 1;
  options_.pulse->carries(parts, bytes, since, has_another_way);
  if (oldest == nullptr) return;
  const Flow& of = *oldest;
  const bool is_connected = of.connection != nullptr;
  const std::pair now{int64_t{of.number}, is_connected ? of.connections : 0};
  if (std::exchange(told_, now) == now) return;
  const Result<Address> local =
      is_connected ? of.connection->local_address() : Status::remote_error("not connected");
  const size_t way = is_connected ? of.path : path_number(of);
  options_.pulse->waits_on(local.is_ok() ? local.value().text() : "", path(way).to.text());
}

}  // namespace niccolite::transport::net
