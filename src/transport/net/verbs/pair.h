// Pair: the queue pairs that join this rank with a rank of another machine. They carry messages of
// both directions, one queue pair or all of them in turns (queue pairs of spare ports wait):
//
//   receiver                                        sender
//   writes a grant: address, keys, size, number --> into the sender's memory
//                                               <-- RDMA write with immediate of the message's
//                                                   bytes; the immediate is the message's number
//
// Message n is of grant n, so that a sender that has no grant yet has no room. An end's handle
// (network.h) has all that the peer must know: ports, queue pairs, and where grants are written.
// Handles travel by the bootstrap alone, whose connections are authenticated. The only memory that
// the peer may write holds grants, the report, the verdict, patterns, received messages, slots in
// memory of the GPU, and buffers of the user; it may read patterns alone.
//
// A queue pair loses messages that come before it has met its peer. So this end sends nothing
// before the peer has met it, which the peer's answer or the peer's first words say: a grant, a
// report or a verdict.
//
// Then each end tries its queue pairs with a pattern (trial.h). Grants and messages wait until the
// end that sends them has done so. A queue pair that changes bytes, or is late, has failed, and the
// others carry the data, as below. Where it is the last, the end tells the peer so (the verdict)
// while something still comes through, and both have the same error.
//
// When a queue pair fails and another one is left, both ends stop using it (failover):
//
//   an end whose queue pair has failed            the other end
//   sets it to the error state, and takes the
//     completions that are left: from now on it
//     knows which messages have come
//   writes a report over a queue pair that is   --> does the same with the queue pairs that the
//     left: failed queue pairs, messages that       report names, and with its own failed ones,
//     have come                                 <-- and writes its report
//   when the peer's report has all failed queue pairs: writes its grants again, and sends those
//   messages again that were on a failed queue pair and have not come
//
// A device that is removed completes nothing any more. Its queue pairs fail when its event is
// there. Those of a device that was gone before have no handle, and both ends begin as if they had
// failed.
//
// So no message comes twice: a write of an old message cannot come any more when its buffer is used
// again. Invariant: a message that is sent again has a grant whose message has not come.
// Thread safety: create() and meet() from any thread; all else on the proxy's thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/net/network.h"
#include "transport/net/verbs/memory.h"
#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/trial.h"

namespace niccolite::transport::net::verbs {

inline constexpr size_t kMostQueuePairs = 32;  // of a Pair
inline constexpr uint32_t kMostMessages = 32;  // under way, of a direction

struct Settings {
  size_t queue_pairs = 1;  // on each rail
  uint8_t timeout = 20;
  uint8_t retries = 7;
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint16_t partition = 0;
  bool splits = false;
  bool is_inline = true;
  bool has_relaxed_ordering = false;
  int64_t adaptive_routing = INT64_MIN;
  uint64_t adaptive_threshold = 8192;
};

class Pair {
 public:
  /// `direct`: makes memory of this rank's GPU, for a trial, or says why it cannot; null: there is
  /// none.
  using Direct = std::function<Result<std::shared_ptr<GpuMemory>>(size_t bytes, unsigned rights)>;
  static Result<std::shared_ptr<Pair>> create(const Library& library, std::vector<Rail> rails,
                                              const Settings& settings, std::string peer,
                                              const Direct& direct);
  ~Pair();
  Pair(const Pair&) = delete;

  Network::Handle handle() const;
  /// Joins the queue pairs with the peer's. InvalidUsage: ports that cannot reach each other.
  Status meet(const Network::Handle& peer);
  bool has_met() const { return has_met_.load(std::memory_order_acquire); }  // pairs with meet()
  void peer_has_met() { peer_has_met_ = true; }

  Result<std::unique_ptr<Registered>> register_memory(void* data, size_t bytes, bool is_received);

  /// One message of a direction. Null: there is no room for now.
  Result<void*> send(void* data, size_t bytes, const Registered& memory,
                     std::span<const DirectWrite> writes = {});
  Result<void*> receive(void* data, size_t bytes, const Registered& memory);
  /// May send() have direct writes?
  bool writes_directly() const { return are_tried_ && is_direct_; }
  /// From now on neither end's devices read or write memory for this pair, which carries nothing
  /// any more.
  void cut();
  /// Returns whether a request of any pair is done.
  static Result<bool> test(void* request);

 private:
  struct Grant {
    uint64_t address = 0;
    uint32_t keys[kMostPorts]{};  // by the receiver's rail
    uint32_t bytes = 0;
    uint32_t number = 0;  // of the message, from 1 on: written last
  };
  struct Report {
    uint32_t begin = 0;    // number, too: a report that is just being replaced has two
    uint32_t failed = 0;   // bits of queue pairs
    uint32_t first = 0;    // the first message that has not come
    uint32_t came = 0;     // bits of later messages: bit i is first + i
    uint32_t refused = 0;  // bits of failed queue pairs: by their trials
    uint32_t number = 0;   // of the report, from 1 on: written last
  };
  enum class Finding : uint32_t { None, IsWrong, IsLate };
  /// The trial of the last queue pair has failed.
  struct Verdict {
    uint32_t queue_pair = 0;
    Finding finding = Finding::None;
    uint32_t number = 0;  // 1 when it is there: written last
  };
  /// Memory that the peer writes, or whose copy at the peer this end writes.
  struct Mail {
    Grant grants[kMostMessages];
    // By the queue pair that carries it: a write over one that fails may come after the next
    // report, which another one carries.
    Report reports[kMostQueuePairs];
    Verdict verdict;
  };
  struct Request {
    Pair* of = nullptr;
    bool is_used = false;
    bool is_send = false;
    uint32_t number = 0;
    uint32_t missing = 0;  // pieces, of kUnknown at a receiver before the first one has come
    uint32_t bytes = 0;
    std::byte* data = nullptr;
    const Registered* memory = nullptr;
    uint32_t queue_pairs = 0;  // bits: over which it was sent
    uint32_t round = 0;        // in which it was sent: the number of failed queue pairs
    uint32_t writes_count = 0;
    std::array<DirectWrite, kMostDirectWrites> writes{};
  };
  struct QueuePair {
    ibv_qp* handle = nullptr;  // null: the device of an end was gone before
    size_t rail = 0;
    size_t peer_rail = 0;
    uint8_t spares = 0;  // of its two ports
    uint32_t most_inline = 0;
    uint32_t trials = 0;  // under way
    bool is_tried = false;
    bool has_failed = false;
    bool is_gone = false;    // with its device: nothing completes any more
    uint32_t posted = 0;     // work requests of the send queue
    uint32_t completed = 0;  // of these
    uint32_t received = 0;   // receives that must be posted anew
    uint32_t receives = 0;   // posted
  };
  struct Greeting;
  struct TrialPlace;

  Pair(const Library& library, std::vector<Rail> rails, const Settings& settings, std::string peer);
  Status make_queue_pairs();
  Status make_queue_pair(size_t rail);
  Status join(QueuePair& own, const Greeting& peer, size_t number);
  Status post_receives(QueuePair& own, uint32_t count);
  Status post(size_t number, ibv_send_wr& work, bool is_last);
  Status write_to_peer(size_t number, const void* from, size_t bytes, const void* to,
                       bool is_signalled);
  Status write_grants();
  Status send_pieces(Request& request, const Grant& grant);
  Status write_direct(size_t number, const Request& request, const DirectWrite& write);
  Status write_piece(size_t number, const Request& request, const Grant& grant, uint32_t offset,
                     uint32_t bytes, uint32_t immediate);
  Status poll();
  Status take(const ibv_wc& completion);
  Status take_failure(size_t number, const ibv_wc& completion);
  Status take_piece(uint32_t immediate);
  Status progress();
  bool has_peer_spoken();
  Report& newest_report();
  Status try_queue_pairs();
  Status begin_trial(size_t number);
  Status post_trial(size_t number, TrialPlace& place, uint32_t place_number);
  Status end_trial(size_t number, uint32_t place_number);
  /// Is there another one with fewer spare ports?
  bool has_nearer(const QueuePair& own) const;
  Status refuse(size_t number, Finding finding, const std::string& what);
  std::string remedy_of(Finding finding, size_t number) const;
  Status hear_verdict();
  Status stop(size_t number);
  Status look_at_devices();
  void leave_out(size_t number);
  Status recover();
  Status write_report();
  bool is_stopped(uint32_t failed) const;
  uint32_t failed() const;
  bool is_recovering() const;
  uint32_t usable() const;
  size_t usable_from(uint32_t number) const;
  bool has_room(const QueuePair& own, uint32_t count) const;
  std::string way(size_t number) const;

  const Library& library_;
  const std::vector<Rail> rails_;
  const Settings settings_;
  const std::string peer_;
  const uint32_t first_packet_;       // sequence number of all own queue pairs
  std::vector<ibv_cq*> completions_;  // by rail; null: its device is gone
  std::vector<QueuePair> queue_pairs_;
  std::unique_ptr<Mail> inbox_;   // the peer writes it
  std::unique_ptr<Mail> outbox_;  // what this end writes to the peer's inbox
  std::unique_ptr<Registered> inbox_memory_;
  std::unique_ptr<Registered> outbox_memory_;
  /// The memory of trials: of the host, and of the GPUs of both ends, where they have such.
  struct TrialPlace {
    std::optional<Trial> trial{};
    const Registered* memory = nullptr;
    uint64_t peer = 0;  // the peer's; 0: there is none
    std::array<uint32_t, kMostPorts> peer_keys{};
  };
  std::array<TrialPlace, 2> trials_{};  // of the host, of the GPU
  std::vector<std::byte> trial_bytes_;
  std::unique_ptr<Registered> trial_memory_;
  std::shared_ptr<GpuMemory> direct_trial_memory_;
  bool is_direct_ = false;  // the trials of the GPUs' memory have found no fault
  std::atomic<bool> has_met_{false};
  bool peer_has_met_ = false;

  // The peer's memory and ports, since meet().
  uint64_t peer_inbox_ = 0;
  std::array<uint32_t, kMostPorts> peer_inbox_keys_{};
  std::vector<std::string> peer_rails_;

  std::array<Request, kMostMessages> sends_{};
  std::array<Request, kMostMessages> receives_{};
  uint32_t next_send_ = 1;  // numbers of messages
  uint32_t next_receive_ = 1;
  uint32_t next_grant_ = 1;     // the first that is not written
  uint32_t first_missing_ = 1;  // the first that has not come
  uint32_t came_ = 0;           // bits of later ones that have
  uint32_t reported_ = 0;       // failed queue pairs of the last own report
  uint32_t reports_ = 0;        // written
  uint32_t recovered_ = 0;      // failed queue pairs that recover() has done with
  Status failure_;              // the first one

  using Clock = std::chrono::steady_clock;
  Clock::time_point tried_until_{};  // since the trials have begun
  bool are_tried_ = false;           // all queue pairs that have not failed
  uint32_t refused_ = 0;             // bits of queue pairs: by their trials

  uint32_t looks_ = 0;  // of progress(), since look_at_devices()

  uint64_t messages_ = 0;
  uint64_t bytes_ = 0;
  uint64_t direct_bytes_ = 0;    // of these
  uint64_t bytes_of_users_ = 0;  // of the direct ones: read from memory of this rank's user
  uint64_t bytes_to_users_ = 0;  // written to memory of the peer's
  uint64_t work_requests_ = 0;
  uint64_t signalled_ = 0;
};

}  // namespace niccolite::transport::net::verbs
