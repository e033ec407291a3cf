// The service warp of a CTA that runs Simple: the only one that looks at the counters of
// connections and announces slots. Workers and service warp speak through PortState in shared
// memory:
//
//   peer's CTA --[publish]--> control block --look--> cached  --> worker: a slot has arrived
//   peer's CTA <--[publish]-- service warp <------ completed <--  worker: a slot is stored, or read
//
// A look takes 0.7 us, a release to the system as long as all stores that are under way need to
// arrive: 1 to 2 us. A worker that did these itself would move nothing meanwhile, several times for
// each slot. Here a worker waits for shared memory alone, and goes on to its next slot at once.
//
// One thread for each port (for every 32nd, if there are more). Order: the stores of a worker's
// threads -> worker barrier -> [completed] release -> [completed] acquire -> fence of the system ->
// [publish]; and [arrival] acquire -> [cached] release -> [cached] acquire -> worker barrier ->
// loads.
#pragma once

#include "executor/cuda/interpreter/advertisements.cuh"
#include "executor/cuda/interpreter/wait.cuh"
#include "executor/protocol/relay.h"

namespace niccolite::executor::cuda {

// ---- for workers

/// Has the slot of `step` arrived (receiver), may it be written (sender)?
__device__ __forceinline__ bool is_open(const Cta& cta, const PortState& port, uint64_t step) {
  // A sender needs cached + depth > step, a receiver cached > step.
  const uint64_t ahead = port.is_send ? cta.header.shape.depth : 0;
  // [cached] pairs with the service warp's.
  return static_cast<int64_t>(ptx::load_acquire_shared(&port.cached) + ahead - step) > 0;
}

/// Waits until the port is open for `step`; false: aborted.
__device__ __forceinline__ bool wait_until_open(const Cta& cta, const PortState& port,
                                                uint64_t step) {
  for (SimpleWait wait(cta.header, *cta.work);;) {
    for (uint32_t look = 0; look < ptx::kSharedLooksPerSpin; ++look) {
      if (is_open(cta, port, step)) return true;
    }
    // Relaxed: it is for a report, and a value that is missed now is seen the next time.
    const bool live = wait.keep_going([&] {
      return Awaited{port.peer, ptx::load_relaxed_shared(&port.other_tag),
                     port.is_send ? ReportKind::WaitingForCredit : ReportKind::WaitingForData};
    });
    if (!live) return false;
  }
}

/// Marks that the worker has stored to the slot of `step`, or has used the data that it read there.
/// Called by one thread, after a barrier of the threads that moved the data.
__device__ __forceinline__ void set_done(PortState& port, uint64_t step) {
  // [completed] pairs with the service warp's.
  ptx::store_release_shared(&port.completed, step + 1);
}

/// Does the same for a sender's slot, which holds `content`: the bytes, and whether they are
/// elsewhere (relay::note_of_place()). If the other end is a proxy, it writes a note first: before
/// [completed], so that the fence of [publish] comes behind it. If no port of the launch has notes,
/// which the parameters say, this costs nothing.
__device__ __forceinline__ void set_sent(const Cta& cta, const PortUse& use, PortState& port,
                                         uint64_t step, uint64_t content) {
  const LaunchHeader& header = cta.header;
  if (header.notes_at != 0) {
    uint64_t* notes =
        reinterpret_cast<uint64_t* const*>(ptx::shared_memory() + header.notes_at)[use.port];
    if (notes != nullptr) {
      const uint32_t slot = static_cast<uint32_t>(step) & (header.shape.depth - 1);
      // Relaxed: [publish] releases it.
      ptx::store_relaxed_system(notes + cta.channel() * header.shape.depth + slot,
                                relay::note_of(0, port.tag) | content | header.elements);
    }
  }
  set_done(port, step);
}

// ---- the warp itself

/// `kByTeam`: in a launch by a team, where who takes an advertisement may refuse it. `kHasPlaces`:
/// in a launch with places (places_kernel.cuh).
template <bool kByTeam, bool kHasPlaces>
class PortService {
 public:
  /// `port` may be null, of another CTA: then there is nothing to do.
  __device__ __forceinline__ PortService(const LaunchHeader& header, PortState* port)
      : header_(header), port_(port) {}

  /// Called by all threads of the warp, whether they have a port or not. False: the port needs no
  /// service any more.
  __device__ __forceinline__ bool serve() {
    uint64_t done = 0;
    uint32_t delivered = 0;
    bool announces = false;
    if (port_ != nullptr) {
      look();
      // [completed] pairs with the worker's.
      done = ptx::load_acquire_shared(&port_->completed);
      if (serves_pulls()) {
        // [delivered] pairs with the worker's.
        delivered = ptx::load_acquire_shared(&port_->delivered);
        announces = delivered != port_->published_delivered;
      } else {
        // A receiver's proxy sees that a place was taken back before it sees the credit.
        announces = (port_->is_send || has_places()) && done != port_->published;
      }
    }
    // A fence for all the ports whose workers have stored something.
    if (ptx::any_of_warp(announces)) ptx::fence_system();
    if (port_ == nullptr) return false;
    if (announces && serves_pulls()) {
      port_->published_delivered = delivered;
      // [delivery] The fence has come before.
      ptx::store_relaxed_system(&port_->remote_control->delivered, delivered);
    }
    tell(done);
    return port_->published != port_->end || !has_seen(last_to_see());
  }

  /// Ends an aborted operation; advertisement.h has the duties to the user of a buffer. The takers
  /// leave first, since the advertisers wait for the takers of other ranks.
  __device__ __forceinline__ void leave_as_taker() {
    if (port_ == nullptr || makes_advertisement(*port_)) return;
    close();
    if (port_->advertisement == static_cast<uint64_t>(Advertisement::None)) return;
    // [detached], [completed] pair with the worker's, which ends as soon as it sees the abort.
    // (Nothing is touched where nothing is agreed: the advertisement is to come, or was of another
    // call.)
    while (has_agreed(*port_) && ptx::load_acquire_shared(&port_->detached) == 0 &&
           ptx::load_acquire_shared(&port_->completed) != port_->end) {
    }
    ptx::fence_system();
    // [detached] The fence has come before.
    ptx::store_relaxed_system(&port_->remote_control->detached, port_->end);
  }
  __device__ __forceinline__ void leave_as_advertiser() {
    if (port_ == nullptr || !makes_advertisement(*port_)) return;
    close();
    if (port_->advertisement == static_cast<uint64_t>(Advertisement::None)) return;
    if (ptx::exchange_acquire_system(&port_->remote_control->advertisement, advertisement::kNone) !=
        advertisement::kNone) {
      return;  // nobody has taken it, and nobody will
    }
    // Some seconds at most, and less than the host waits for its kernels: a peer that answers
    // neither way is no more.
    for (uint32_t looks = 0; looks < ptx::kSpinsPerReport; ++looks) {
      // [arrival], or [credit], as in look().
      const uint64_t remote = ptx::load_acquire_system(&port_->control->remote);
      if (!is_before(call_tag::steps_in(remote, port_->base), port_->end)) return;
      // Acquire, pairs with [detached].
      if (ptx::load_acquire_system(&port_->control->detached) == port_->end) return;
    }
  }

  /// Ends the part that proxies have in an aborted operation (protocol/user_memory.h).
  __device__ __forceinline__ void ask_to_let_go() {
    if (!has_places() || is_closed()) return;
    // [detached], [completed] as above: the worker names no more places.
    while (ptx::load_acquire_shared(&port_->detached) == 0 &&
           ptx::load_acquire_shared(&port_->completed) != port_->end) {
    }
    ptx::fence_system();
    // [detached] The fence has come before.
    ptx::store_relaxed_system(&port_->remote_control->detached, port_->end);
  }
  __device__ __forceinline__ void await_letting_go() {
    if (!has_places() || is_closed()) return;
    // Not for ever, as below: a proxy that does not answer has ended, and its network with it.
    for (uint32_t looks = 0; looks < ptx::kSpinsPerReport; ++looks) {
      const uint64_t answer = ptx::load_acquire_system(&port_->control->detached);
      if (answer == port_->end || answer == relay::kAbandoned) return;
    }
  }

  /// Was an operation before this one aborted?
  __device__ __forceinline__ bool is_closed() const {
    return port_ != nullptr && port_->base >= kAbortedStep;
  }

 private:
  // Closes the port to work that is queued behind an aborted operation.
  __device__ __forceinline__ void close() {
    ptx::store<uint64_t>(reinterpret_cast<std::byte*>(&port_->control->step), kAbortedStep);
  }

  __device__ __forceinline__ bool has_seen(uint64_t step) const {
    return !is_before(port_->cached, step);
  }

  // Steps at the end of the operation that need not be seen. A sender can do without the credit of
  // the last `depth`; but if it exposes, not even after a refusal: its next advertisement must not
  // replace one that has not been taken.
  __device__ __forceinline__ uint64_t spared() const {
    return port_->is_send && port_->is_direct_get == 0 ? header_.shape.depth : 0;
  }

  __device__ __forceinline__ bool has_places() const {
    return kHasPlaces && port_ != nullptr && port_->has_places != 0;
  }
  // The operation ends when this has been seen: a sender's chunks have left their places.
  __device__ __forceinline__ uint64_t last_to_see() const {
    const uint64_t last = port_->end - spared();
    if (!has_places() || !port_->is_send) return last;
    // Relaxed: [completed] of the last step comes behind its last change.
    const uint64_t in_places = ptx::load_relaxed_shared(&port_->in_places);
    return is_before(last, in_places) ? in_places : last;
  }
  // The worker of this sender is done. Will the receiver take no more, and nobody read the places?
  __device__ __forceinline__ bool is_abandoned() const {
    return has_places() && port_->is_send && port_->published == port_->end &&
           ptx::load_acquire_system(&port_->control->detached) == relay::kAbandoned;
  }

  // Has this end made an advertisement that may be used? The other then does all the work.
  __device__ __forceinline__ bool has_advertised() const {
    return makes_advertisement(*port_) && has_agreed(*port_);
  }

  // Is this an exposing sender, whose worker stores the pulled tiles? It has nothing else to
  // announce.
  __device__ __forceinline__ bool serves_pulls() const {
    return port_->is_send && has_advertised();
  }

  // Takes the advertisement at an end that has not seen it. Its port stays closed until then.
  __device__ __forceinline__ void take_advertisement() {
    // [take] pairs with the [advertisement] of the other end.
    const uint64_t word =
        ptx::exchange_acquire_system(&port_->control->advertisement, advertisement::kNone);
    if (word == advertisement::kNone) return;
    if (advertisement::tag_in(word) != port_->tag) {
      ptx::store_relaxed_shared(&port_->other_tag, advertisement::tag_in(word));
      return;
    }
    const uint64_t address = advertisement::address_in(word);
    if (address == 0) {
      port_->advertisement = static_cast<uint64_t>(Advertisement::None);
      return;  // [credit] or [arrival] decides, at the next look
    }
    port_->slots = reinterpret_cast<std::byte*>(address);
    if (advertisement::serves(word)) port_->pulls = static_cast<uint32_t>(Pulls::Possible);
    port_->advertisement = static_cast<uint64_t>(Advertisement::Agreed);
    // [cached] pairs with the worker's: open for all steps.
    ptx::store_release_shared(&port_->cached, port_->end);
  }

  // Where peers have advertised different places (team_kernel.cuh): data go through slots.
  __device__ __forceinline__ void refuse() {
    // [refused] Before the first [publish], which has a fence; and the peer gives no [credit]
    // before it has heard this. Pairs with hear_refusal().
    ptx::store_relaxed_system(&port_->remote_control->detached, port_->end);
    port_->slots = port_->own_slots;
    // The port is as before it was taken. The worker waits for the end of Refused.
    port_->cached = port_->is_send ? port_->base - header_.shape.depth : port_->base;
    ptx::store_release_shared(&port_->advertisement, static_cast<uint64_t>(Advertisement::None));
  }
  // Called before the peer's counter becomes visible to the worker, which asks then whether there
  // is still an advertisement.
  __device__ __forceinline__ void hear_refusal() {
    if (port_->by_team == 0 || !has_advertised()) return;
    // [refused]
    if (ptx::load_acquire_system(&port_->control->detached) == port_->end)
      ptx::store_release_shared(&port_->advertisement, static_cast<uint64_t>(Advertisement::None));
  }

  __device__ __forceinline__ void look() {
    if constexpr (kByTeam) {
      // [refusal] pairs with the worker's.
      if (ptx::load_acquire_shared(&port_->advertisement) ==
          static_cast<uint64_t>(Advertisement::Refused)) {
        return refuse();
      }
    }
    if (port_->advertisement == static_cast<uint64_t>(Advertisement::Pending) &&
        !makes_advertisement(*port_)) {
      return take_advertisement();
    }
    if (ptx::load_relaxed_shared(&port_->pulls) == static_cast<uint32_t>(Pulls::Made)) {
      // [delivery] pairs with [delivery] of the exposing sender; [delivered] with the worker's.
      ptx::store_release_shared(&port_->delivered,
                                ptx::load_acquire_system(&port_->control->delivered));
      return;
    }
    if (has_seen(last_to_see())) return;  // all that this operation needs
    // Sender: [credit], pairs with [consume]. Receiver: [arrival], pairs with [publish].
    uint64_t remote = ptx::load_acquire_system(&port_->control->remote);
    if (!port_->is_send) {
      if (is_of_other_call(*port_, remote)) {
        ptx::store_relaxed_shared(&port_->other_tag, call_tag::tag_in(remote));
        return;
      }
      remote = call_tag::steps_in(remote, port_->base);
    }
    if constexpr (kByTeam) hear_refusal();
    if (is_abandoned()) remote = last_to_see();
    // [cached] pairs with the worker's.
    ptx::store_release_shared(&port_->cached, remote);
  }

  __device__ __forceinline__ void tell(uint64_t done) {
    const uint64_t told = port_->published;
    if (done == told) return;
    port_->published = done;
    if (has_advertised()) return;  // puts take no slot, and exposed data needs none
    if (port_->is_send) {
      // [publish] The fence has come before.
      ptx::store_relaxed_system(&port_->remote_control->remote, call_tag::tail(done, port_->tag));
      return;
    }
    // [consume] as far as the sender can need it in this operation (fifo.h: lazy credit; relay.h).
    // Relaxed: a store cannot pass a load whose value has been used.
    const bool gives_all = port_->is_direct_get != 0 || port_->is_relay != 0;
    const uint64_t last = gives_all ? port_->end : port_->end - header_.shape.depth;
    const uint64_t credit = is_before(last, done) ? last : done;
    if (is_before(port_->base, credit) && is_before(told, credit)) {
      ptx::store_relaxed_system(&port_->remote_control->remote, credit);
    }
  }
  __device__ __forceinline__ static bool is_before(uint64_t a, uint64_t b) {
    return static_cast<int64_t>(a - b) < 0;
  }

  const LaunchHeader& header_;
  PortState* const port_;
};

/// Calls function(PortService) for each port, a thread for every one of 32.
template <bool kByTeam, bool kHasPlaces, typename Function>
__device__ __forceinline__ void for_each_port(const Cta& cta, Function&& function) {
  const uint32_t ports = cta.header.nports;
  for (uint32_t first = 0; first < ports; first += kWarp) {
    const uint32_t p = first + ptx::thread() % kWarp;
    function(PortService<kByTeam, kHasPlaces>(
        cta.header, p < ports && cta.ports[p].control != nullptr ? cta.ports + p : nullptr));
  }
}

/// The service warp, until the workers are done and have no more to tell, or the operation goes no
/// further.
template <bool kByTeam = false, bool kHasPlaces = false>
__device__ __forceinline__ void serve_ports(const Cta& cta) {
  using Port = PortService<kByTeam, kHasPlaces>;
  // After an aborted operation, the warp looks at the word soon: many operations may be queued.
  bool is_closed = false;
  for_each_port<kByTeam, kHasPlaces>(cta, [&](Port port) { is_closed |= port.is_closed(); });
  for (uint32_t looks = ptx::any_of_warp(is_closed) ? 0 : 1;; ++looks) {
    bool is_needed = false;
    for_each_port<kByTeam, kHasPlaces>(cta, [&](Port port) { is_needed |= port.serve(); });
    if (!ptx::any_of_warp(is_needed)) return;
    // Relaxed: nothing is read on account of it; the kernel just ends. Else not at the first look:
    // the word is in host memory, and the loads of 18 CTAs took 12 us (H200, 2026-11).
    if (looks % SimpleWait::kSpinsPerLook == 0 &&
        ptx::any_of_warp(ptx::load_relaxed_system(cta.header.abort) !=
                         static_cast<uint32_t>(Command::GoOn))) {
      break;
    }
  }
  for_each_port<kByTeam, kHasPlaces>(cta, [](Port port) { port.leave_as_taker(); });
  if constexpr (kHasPlaces)
    for_each_port<kByTeam, kHasPlaces>(cta, [](Port port) { port.ask_to_let_go(); });
  wait_for_end(cta.header);
  // Only now: this rank's own user frees nothing before.
  if constexpr (kHasPlaces)
    for_each_port<kByTeam, kHasPlaces>(cta, [](Port port) { port.await_letting_go(); });
  for_each_port<kByTeam, kHasPlaces>(cta, [](Port port) { port.leave_as_advertiser(); });
}

}  // namespace niccolite::executor::cuda
