#include "executor/host/packed_slot.h"

#include "executor/host/ll128_lines.h"
#include "executor/host/ll_words.h"

namespace niccolite::executor::host {

static_assert(PackedSlot::kGrain % ll::kDataBytes == 0 &&
              PackedSlot::kGrain % ll128::kDataBytes == 0 && PackedSlot::kGrain % 16 == 0);

PackedSlot::PackedSlot(Protocol protocol, const PortState& port, std::byte* slot)
    : slot_(slot),
      flag_(protocol == Protocol::LL ? ll::flag_of(port.step(), port.tag())
                                     : ll128::flag_of(port.step(), port.tag())),
      is_ll_(protocol == Protocol::LL) {}

uint64_t PackedSlot::flag_at(uint64_t byte) const {
  return is_ll_ ? ll_flag(slot_, byte) : ll128_flag(slot_, byte);
}

Arrival PackedSlot::judge(uint64_t flag) const {
  if (flag == flag_) return {Arrived::Yes};
  if (is_ll_) {
    const auto word_flag = static_cast<uint32_t>(flag);
    if (ll::is_mismatch(word_flag, static_cast<uint32_t>(flag_)))
      return {Arrived::Foreign, ll::tag_in(word_flag)};
  } else if (ll128::is_mismatch(flag, flag_)) {
    return {Arrived::Foreign, call_tag::tag_in(flag)};
  }
  return {Arrived::No};
}

Arrival PackedSlot::arrival(uint64_t offset, uint64_t bytes) const {
  const Arrival last = judge(flag_at(offset + bytes - 1));
  if (last.state != Arrived::No) return last;
  const Arrival first = judge(flag_at(offset));
  return first.state == Arrived::Foreign ? first : last;
}

bool PackedSlot::unpack(uint64_t offset, uint64_t bytes, std::byte* data) const {
  return is_ll_ ? ll_unpack(slot_, offset, bytes, static_cast<uint32_t>(flag_), data)
                : ll128_unpack(slot_, offset, bytes, flag_, data);
}

void PackedSlot::pack(uint64_t offset, uint64_t bytes, const std::byte* data) const {
  if (is_ll_) {
    ll_pack(slot_, offset, bytes, static_cast<uint32_t>(flag_), data);
  } else {
    ll128_pack(slot_, offset, bytes, flag_, data);
  }
}

}  // namespace niccolite::executor::host
