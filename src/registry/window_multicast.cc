#include "registry/window_multicast.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr uint32_t kMark = 0x6d636173;   // messages of other collective calls begin otherwise
constexpr uint32_t kMostWindows = 2048;  // the exchange has room for 64 KiB of each rank
constexpr size_t kMostText = 1024;
constexpr const char* kBinding = "binding a window to a multicast team";

void write(Writer& writer, const std::vector<uint64_t>& numbers) {
  writer.u32(static_cast<uint32_t>(numbers.size()));
  for (const uint64_t number : numbers) writer.u64(number);
}

std::vector<uint64_t> read(Reader& reader) {
  std::vector<uint64_t> numbers(reader.count(kMostWindows, sizeof(uint64_t)));
  for (uint64_t& number : numbers) number = reader.u64();
  return numbers;
}

/// The most memory that a device of any rank has.
Result<uint64_t> largest_memory(const WindowMulticast::Options& options) {
  Writer writer;
  const Result<gpu::DeviceInfo> info = options.machine.device_info(options.device);
  writer.u64(info.is_ok() ? info.value().total_bytes : 0);
  const bootstrap::Gathered gathered =
      TRY(options.member.all_gather(writer.bytes(), Deadline::never()));
  uint64_t most = 0;
  for (int rank = 0; rank < options.member.nranks(); ++rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(gathered[rank], origin);
    most = std::max(most, reader.u64());
    TRY(reader.finish());
  }
  return most;
}

}  // namespace

MulticastPlace::~MulticastPlace() { end_binding(); }

std::vector<transport::Team::Piece> MulticastPlace::memory() const {
  std::vector<transport::Team::Piece> memory;
  for (const auto& piece : pieces)
    memory.push_back({piece->backing().base, piece->backing().bytes});
  return memory;
}

void MulticastPlace::end_binding() {
  if (team_ != nullptr) team_->unbind_window(offset_ + first_piece, memory());
  team_ = nullptr;
  if (held_ == nullptr) return;
  const std::lock_guard lock(held_->mutex);
  held_->numbers.erase(number);
}

Result<std::unique_ptr<WindowMulticast>> WindowMulticast::make(const Options& options) {
  // As much room as all memory of a device needs.
  const uint64_t room = TRY(largest_memory(options));
  std::vector<int> teams;
  for (int rank = 0; rank < options.member.nranks(); ++rank)
    teams.push_back(rank / options.team_ranks);
  transport::Team::Outcome outcome = TRY(transport::Team::make({.machine = options.machine,
                                                                .device = options.device,
                                                                .member = options.member,
                                                                .machines = teams,
                                                                .refusal = options.refusal,
                                                                .slots = {},
                                                                .window_bytes = room,
                                                                .try_step = options.try_step}));
  if (outcome.team == nullptr) return Status::invalid_argument("{}", outcome.obstacle);
  // Steps with the same answer on all ranks, as the same of Team::make() have shown.
  const uint64_t unit = TRY(options.machine.multicast().binding_granularity(options.team_ranks));
  return std::unique_ptr<WindowMulticast>(
      new WindowMulticast(options.member, std::move(outcome.team), unit));
}

// Tells which windows this rank has, and which parts it uses; returns the windows of `live` that
// all ranks have and that none has tried, or as many as there is room to tell.
Result<WindowMulticast::Choice> WindowMulticast::choose(
    std::span<const std::shared_ptr<MulticastPlace>> live) {
  std::map<uint64_t, std::shared_ptr<MulticastPlace>> untried;
  for (const auto& place : live)
    if (!place->is_tried_) untried.emplace(place->number, place);
  std::vector<uint64_t> held, wanted;
  {
    const std::lock_guard lock(held_->mutex);
    held.assign(held_->numbers.begin(), held_->numbers.end());
  }
  for (const auto& [number, place] : untried)
    if (wanted.size() < kMostWindows) wanted.push_back(number);
  Writer writer;
  writer.u32(kMark);
  write(writer, held);
  write(writer, wanted);
  const bootstrap::Gathered gathered = TRY(member_.all_gather(writer.bytes(), Deadline::never()));
  std::set<uint64_t> in_use;
  std::map<uint64_t, int> wishes;
  bool is_full = false;
  for (int rank = 0; rank < member_.nranks(); ++rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(gathered[rank], origin);
    if (reader.u32() != kMark) reader.reject("no list of windows: is the rank in another call?");
    for (const uint64_t number : read(reader)) in_use.insert(number);
    const std::vector<uint64_t> theirs = read(reader);
    is_full |= theirs.size() == kMostWindows;
    for (const uint64_t number : theirs) ++wishes[number];
    TRY(reader.finish());
  }
  std::erase_if(parts_, [&](const auto& part) { return !in_use.contains(part.first); });
  Choice choice{.places = {}, .is_last = !is_full};
  for (const auto& [number, place] : untried) {
    const auto wish = wishes.find(number);
    if (wish != wishes.end() && wish->second == member_.nranks()) choice.places.push_back(place);
  }
  return choice;
}

// The first free part of the range that is large enough; false: there is none.
bool WindowMulticast::find_room(MulticastPlace& place) {
  const auto up = [&](uint64_t bytes) { return (bytes + unit_ - 1) / unit_ * unit_; };
  std::vector<Part> used;
  for (const auto& [number, part] : parts_) used.push_back(part);
  std::sort(used.begin(), used.end(),
            [](const Part& a, const Part& b) { return a.offset < b.offset; });
  const uint64_t bytes = up(place.bytes);
  uint64_t offset = team_->windows_begin();
  for (const Part& part : used) {
    if (offset + bytes <= part.offset) break;
    offset = part.offset + part.bytes;
  }
  if (place.bytes == 0 || parts_.size() == kMostWindows || offset + bytes > team_->windows_end())
    return false;
  parts_[place.number] = {offset, bytes};
  place.offset_ = offset;
  return true;
}

WindowMulticast::Outcome WindowMulticast::try_binding(const std::shared_ptr<MulticastPlace>& place,
                                                      std::string& obstacle) {
  std::vector<transport::Team::Piece> memory = place->memory();
  const bool is_even = std::all_of(memory.begin(), memory.end(),
                                   [&](const auto& piece) { return piece.bytes % unit_ == 0; });
  if (!is_even || place->first_piece % unit_ != 0) {
    obstacle = fmt::format(
        "its memory begins or ends between multiples of {} bytes: ncclMemAlloc gives memory that "
        "can be bound",
        unit_);
    return Outcome::Unfit;
  }
  const std::optional<Status> status = transport::Team::bind_window(
      team_, place->offset_ + place->first_piece, std::move(memory), place);
  if (!status || !status->is_ok()) obstacle = transport::Team::obstacle(kBinding, status);
  if (!status) return Outcome::NotInTime;
  if (!status->is_ok()) return Outcome::Failed;
  place->team_ = team_;
  return Outcome::Bound;
}

Status WindowMulticast::bind(std::span<const std::shared_ptr<MulticastPlace>> live) {
  for (bool is_last = false; !is_last && !has_given_up_;) {
    const Choice choice = TRY(choose(live));
    // As all ranks have it: the same windows.
    is_last = choice.is_last || choice.places.empty();
    if (!choice.places.empty()) TRY(bind_chosen(choice.places));
  }
  return {};
}

Status WindowMulticast::bind_chosen(const Places& chosen) {
  std::vector<Outcome> outcomes;
  std::string mine;  // the first obstacle
  bool is_late = false;
  for (const auto& each : chosen) {
    each->is_tried_ = true;
    std::string obstacle;
    Outcome outcome = Outcome::Unfit;
    if (each->bytes == 0) {
      obstacle = "its copies begin at different places in the pages of the ranks' memory";
    } else if (!find_room(*each)) {
      obstacle = "the team's range has no room left: deregister windows that are not used";
    } else if (!is_late) {
      {
        const std::lock_guard lock(held_->mutex);
        held_->numbers.insert(each->number);
      }
      each->held_ = held_;
      outcome = try_binding(each, obstacle);
      is_late = outcome == Outcome::NotInTime;
    }
    if (mine.empty() && !obstacle.empty())
      mine = fmt::format("window {} of the communicator: {}", each->number, obstacle);
    outcomes.push_back(outcome);
  }

  Writer writer;
  writer.u32(kMark);
  writer.u32(static_cast<uint32_t>(outcomes.size()));
  for (const Outcome outcome : outcomes) writer.u8(static_cast<uint8_t>(outcome));
  writer.text(std::string_view(mine).substr(0, kMostText));
  const bootstrap::Gathered gathered = TRY(member_.all_gather(writer.bytes(), Deadline::never()));
  std::vector<Outcome> worst(outcomes.size(), Outcome::Bound);
  std::string first;
  for (int rank = 0; rank < member_.nranks(); ++rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(gathered[rank], origin);
    if (reader.u32() != kMark || reader.count(kMostWindows, 1) != outcomes.size())
      reader.reject("no outcome of binding windows");
    for (Outcome& outcome : worst) outcome = std::max(outcome, static_cast<Outcome>(reader.u8()));
    const std::string obstacle = reader.text(kMostText);
    TRY(reader.finish());
    if (first.empty() && !obstacle.empty()) first = fmt::format("rank {}: {}", rank, obstacle);
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    MulticastPlace& each = *chosen[i];
    has_given_up_ |= worst[i] == Outcome::NotInTime;
    // release: who sees the address sees that the memory is bound.
    if (worst[i] == Outcome::Bound)
      each.address_.store(team_->at(each.offset_ + each.begin), std::memory_order_release);
    else if (outcomes[i] != Outcome::NotInTime)  // else the driver may still be binding it
      each.end_binding();
  }
  if (first.empty()) return {};
  obstacle_ = std::move(first);
  if (member_.rank() != 0) return {};
  constexpr const char* kLine = "a window has no multicast addresses: {}";
  if (std::ranges::any_of(worst, [](Outcome outcome) { return outcome > Outcome::Unfit; })) {
    LOG(Warn, Nvls, kLine, obstacle_);
  } else {
    LOG(Info, Nvls, kLine, obstacle_);
  }
  return {};
}

}  // namespace niccolite::registry
