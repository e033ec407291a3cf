// Rendezvous: the state of one meeting at a root, without its thread and its listening port. See
// root.h.
//
//   Gathering --(all ranks have come)--> Placing --(all processes Ready)--> over
//       \------------(any failure)-----------\--> Failed --(all told, none came for a while)-->
//       over
//
// Thread safety: the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "bootstrap/messages.h"
#include "wire/link.h"

namespace niccolite::bootstrap {

class Rendezvous final : private wire::Link::Owner {
 public:
  struct Options {
    Address address;        // of the root, for messages
    bool waits_for_late;    // after a failure: stay a while, so that ranks that are late hear why
    messages::Origin host;  // the process of the root
    std::function<void()> decided;  // every rank has its place, or it failed
    std::function<void()> over;     // nobody needs the root any more
  };
  Rendezvous(wire::EventLoop& loop, Options options);
  ~Rendezvous();

  /// Takes an authenticated link of a process.
  void welcome(std::unique_ptr<wire::Link> link);
  /// The root cannot let others in.
  void exhausted(const Status& why);
  /// Is there a rank of another process that has not read yet that it is not let in?
  bool owes_word() const;
  /// True if nobody has come yet.
  bool is_unused() const { return phase_ == Phase::Gathering && guests_.empty(); }

 private:
  enum class Phase { Gathering, Placing, Failed, Over };
  struct Guest {
    std::unique_ptr<wire::Link> link;
    std::vector<int32_t> ranks;
    messages::Join join;  // of its first rank
    bool ready = false;
    bool told_stopped = false;  // the others have heard of it
  };

  void link_opened(wire::Link&) override {}
  void link_frame(wire::Link& link, std::span<const std::byte> payload) override;
  void link_ended(wire::Link& link, wire::Link::End end, Status reason) override;

  Status take(Guest& guest, std::span<const std::byte> payload);
  Status take_join(Guest& guest, messages::Join join);
  Status check(const messages::Join& join) const;
  void place();
  void tell_host();
  void look_for_missing();
  void look_for_stopped();
  void tell_awaited(const messages::Awaited& awaited);
  void remind(wire::EventLoop::Clock::duration waited);
  std::vector<int32_t> missing_ranks() const;
  void deadline_passed();
  Status describe_unready() const;
  enum class HostHears : uint8_t { AtOnce, Last };
  void fail(messages::Refused refused, HostHears host = HostHears::AtOnce);
  void fail(const Status& status);
  void finish_if_over();
  void finish();
  void dismiss(wire::Link& link);
  bool is_of_host(const Guest& guest) const { return guest.join.origin == options_.host; }

  wire::EventLoop& loop_;
  const Options options_;
  Phase phase_ = Phase::Gathering;
  std::map<wire::Link*, Guest> guests_;
  struct Seat {
    messages::Origin origin;
    wire::Link* link = nullptr;
  };
  std::map<int32_t, Seat> seats_;  // by rank
  int32_t nranks_ = 0;             // of the first Join; 0: none yet
  int32_t first_rank_ = 0;         // the rank that has told the number
  wire::EventLoop::Clock::time_point deadline_ = wire::EventLoop::Clock::time_point::max();
  wire::EventLoop::Id deadline_timer_ = 0;
  wire::EventLoop::Id linger_timer_ = 0;
  wire::EventLoop::Id reminder_ = 0;
  wire::EventLoop::Id looker_ = 0;   // for whom all wait
  std::vector<int32_t> host_ranks_;  // that live in the process of the root, ascending
  messages::Refused refusal_;        // once Failed
  bool is_exhausted_ = false;        // that is why
  std::set<int32_t> told_;           // ranks that the refusal was sent to
};

}  // namespace niccolite::bootstrap
