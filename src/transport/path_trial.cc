#include "transport/path_trial.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/wire.h"
#include "gpu/machine.h"
#include "transport/descriptor_server.h"
#include "transport/imports.h"

namespace niccolite::transport {
namespace {

using std::chrono::milliseconds;

// Time for a copy of a few words, and for its stores to arrive: a thousand times the usual time.
constexpr auto kPatience = milliseconds(250);
constexpr auto kBetweenLooks = std::chrono::microseconds(200);
constexpr size_t kWords = 64;
constexpr size_t kBytes = kWords * sizeof(uint64_t);
using Pattern = std::array<uint64_t, kWords>;

struct Outcomes {
  std::mutex mutex;
  std::map<Path, PeerAccess> known GUARDED_BY(mutex);
};

// Never destroyed: communicators may outlive static destruction.
Outcomes& outcomes() {
  static Outcomes* const instance = new Outcomes;
  return *instance;
}

// Memory in which a rank lets others store; empty if it tries nothing.
struct TrialBuffer {
  std::string address;  // of the descriptor server
  Token token{};
  uint64_t bytes = 0;

  Bytes encode() const {
    Writer writer;
    writer.text(address);
    writer.raw(std::as_bytes(std::span(token)));
    writer.u64(bytes);
    return std::move(writer).take();
  }
  static Result<TrialBuffer> decode(std::span<const std::byte> bytes, int rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(bytes, origin);
    TrialBuffer place;
    place.address = reader.text(256);
    place.token = read_token(reader);
    place.bytes = reader.u64();
    TRY(reader.finish());
    return place;
  }
};

// No word is zero, and every one depends on who stores it where.
Pattern pattern_of(const Token& token, int from) {
  uint64_t seed = 0;
  std::memcpy(&seed, token.data(), sizeof seed);
  Pattern pattern;
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word = seed + (static_cast<uint64_t>(from) << 32) + i;
    word = (word ^ (word >> 31)) * 0x9e3779b97f4a7c15u;
    pattern[i] = word | 1;
  }
  return pattern;
}

// The trials of one rank. Memory that an unfinished copy may still touch is never freed.
class Trial {
 public:
  Trial(gpu::Machine& machine, int device, const bootstrap::Member& member)
      : machine_(machine),
        device_(device),
        member_(member),
        findings_(static_cast<size_t>(member.nranks()), Finding::Works),
        peers_(static_cast<size_t>(member.nranks())) {}

  Result<TrialBuffer> open() {
    const auto nranks = static_cast<size_t>(member_.nranks());
    own_ = TRY(Chunk::create(machine_, device_, nranks * kBytes));
    server_ = TRY(DescriptorServer::instance());
    staging_ = TRY(machine_.allocate_host(2 * nranks * kBytes));
    return TrialBuffer{
        .address = server_->address(), .token = own_->token(), .bytes = own_->bytes()};
  }

  /// Stores to the peer's memory, if that can be mapped.
  void store(int peer, const TrialBuffer& place, const Deadline& deadline) {
    const Finding found = try_store(peer, place, deadline);
    if (found != Finding::Works) findings_[static_cast<size_t>(peer)] = found;
  }

  /// All have stored. Looks until everything is right, or the time is over.
  void look(const std::vector<bool>& with) {
    std::vector<bool> open = with;
    const Deadline patience = Deadline::after(kPatience);
    for (;;) {
      for (int peer = 0; peer < member_.nranks(); ++peer) {
        const auto at = static_cast<size_t>(peer);
        if (!open[at]) continue;
        open[at] = !is_right(peer);
      }
      if (std::ranges::none_of(open, [](bool is_open) { return is_open; }) || patience.passed())
        return;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  const std::vector<Finding>& findings() const { return findings_; }

  /// Ends it, or lets it stay for ever where a copy is still under way.
  struct End {
    void operator()(Trial* ended) const {
      std::unique_ptr<Trial> trial(ended);
      if (!trial->is_stuck_) return;
      static auto& mutex = *new std::mutex;
      static auto& kept = *new std::vector<std::unique_ptr<Trial>>;  // never destroyed
      const std::lock_guard lock(mutex);
      kept.push_back(std::move(trial));
    }
  };

 private:
  struct Peer {
    std::shared_ptr<Chunk> shared;
    std::shared_ptr<Import> imported;
    std::byte* memory = nullptr;  // for this rank's pattern
    Pattern pattern{};
    gpu::Stream stream;
    gpu::Event done;
    ~Peer() {
      if (imported != nullptr) imported->leave();
    }
  };

  Finding try_store(int peer, const TrialBuffer& place, const Deadline& deadline) {
    Peer& of = peers_[static_cast<size_t>(peer)];
    const auto map = [&]() -> Status {
      std::byte* base = nullptr;
      if (member_.same_process(peer)) {
        of.shared = Chunk::find(place.token);
        if (of.shared == nullptr)
          return Status::remote_error("rank {} has given its memory back", peer);
        TRY(of.shared->grant_access(device_));
        base = of.shared->data();
      } else {
        of.imported = TRY(Import::open(
            machine_, device_,
            {.address = place.address, .token = place.token, .bytes = place.bytes}, deadline));
        base = of.imported->data();
      }
      of.memory = base + static_cast<size_t>(member_.rank()) * kBytes;
      of.stream = TRY(machine_.create_stream(device_));
      of.done = TRY(machine_.create_event(device_, /*timing=*/false));
      return {};
    };
    if (Status status = map(); !status.is_ok()) {
      LOG(Info, P2p, "rank {}: the memory of rank {}'s GPU cannot be mapped: {}", member_.rank(),
          peer, status.message());
      return Finding::NotMapped;
    }
    of.pattern = pattern_of(place.token, member_.rank());
    std::byte* const staged = staged_for(peer);
    std::memcpy(staged, of.pattern.data(), kBytes);
    return copy(peer, of.memory, staged) ? Finding::Works : Finding::StoreNotDone;
  }

  // Both ways; the later finding stays.
  bool is_right(int peer) {
    const auto at = static_cast<size_t>(peer);
    Finding& finding = findings_[at];
    if (finding == Finding::NotMapped || finding == Finding::StoreNotDone) return true;
    if (!holds(peer, own_->data() + at * kBytes, pattern_of(own_->token(), peer))) {
      finding = Finding::StoreLost;
      return false;
    }
    if (!holds(peer, peers_[at].memory, peers_[at].pattern)) {
      finding = Finding::LoadIsWrong;
      return false;
    }
    finding = Finding::Works;
    return true;
  }

  bool holds(int peer, const std::byte* memory, const Pattern& pattern) {
    std::byte* const staged = staged_for(peer) + kBytes;
    std::memset(staged, 0, kBytes);
    return copy(peer, staged, memory) && std::memcmp(staged, pattern.data(), kBytes) == 0;
  }

  // False: it has not ended in time.
  bool copy(int peer, void* target, const void* source) {
    Peer& of = peers_[static_cast<size_t>(peer)];
    const auto run = [&]() -> Result<bool> {
      TRY(machine_.copy_async(target, source, kBytes, device_, of.stream.handle()));
      TRY(machine_.record_event(of.done, device_, of.stream.handle()));
      return machine_.await_event(of.done, Deadline::after(kPatience));
    };
    Result<bool> ended = run();
    if (!ended.is_ok()) {
      LOG(Info, P2p, "rank {}: a copy that tries the path to rank {}'s GPU: {}", member_.rank(),
          peer, ended.status().message());
      return false;
    }
    is_stuck_ |= !*ended;
    return *ended;
  }

  std::byte* staged_for(int peer) const {
    return static_cast<std::byte*>(staging_.data()) + 2 * static_cast<size_t>(peer) * kBytes;
  }

  gpu::Machine& machine_;
  const int device_;
  const bootstrap::Member& member_;
  std::shared_ptr<Chunk> own_;  // [rank that stores] of kBytes
  std::shared_ptr<DescriptorServer> server_;
  gpu::Memory staging_;  // [rank]: the words to store there, and the words read back
  std::vector<Finding> findings_;
  std::vector<Peer> peers_;
  bool is_stuck_ = false;
};

}  // namespace

PeerAccess find_tried(const Path& path) {
  std::lock_guard lock(outcomes().mutex);
  const auto found = outcomes().known.find(path);
  return found == outcomes().known.end() ? PeerAccess::Untried : found->second;
}

std::string describe(Finding finding, int rank, int peer) {
  switch (finding) {
    case Finding::Works:
      break;
    case Finding::NotMapped:
      return fmt::format("rank {} cannot map memory of rank {}'s GPU", rank, peer);
    case Finding::StoreNotDone:
      return fmt::format("a copy of rank {}'s GPU to the memory of rank {}'s does not end", rank,
                         peer);
    case Finding::StoreLost:
      return fmt::format("what rank {}'s GPU stores in the memory of rank {}'s does not arrive",
                         peer, rank);
    case Finding::LoadIsWrong:
      return fmt::format("what rank {}'s GPU reads in the memory of rank {}'s is not what is there",
                         rank, peer);
  }
  return fmt::format("rank {}'s GPU reaches the memory of rank {}'s", rank, peer);
}

Result<Findings> try_paths(gpu::Machine& machine, int device, bootstrap::Member& member,
                           const std::vector<bool>& with,
                           const std::vector<std::array<uint8_t, 16>>& uuids,
                           const Deadline& deadline) {
  const bool tries = std::ranges::any_of(with, [](bool is_tried) { return is_tried; });
  // Every return ends the trial in this way.
  std::unique_ptr<Trial, Trial::End> trial(new Trial(machine, device, member));
  TrialBuffer place;
  if (tries) place = TRY(trial->open());
  const bootstrap::Gathered places = TRY(member.all_gather(place.encode(), deadline));
  for (int peer = 0; peer < member.nranks(); ++peer) {
    if (!with[static_cast<size_t>(peer)]) continue;
    const TrialBuffer of_peer = TRY(TrialBuffer::decode(places[peer], peer));
    trial->store(peer, of_peer, deadline);
  }
  TRY(member.barrier(deadline));  // all have stored
  trial->look(with);

  Findings findings{.own = trial->findings(), .of_peers = {}};
  std::vector<std::byte> mine;
  for (const Finding finding : findings.own) mine.push_back(static_cast<std::byte>(finding));
  const bootstrap::Gathered of_all = TRY(member.all_gather(mine, deadline));
  trial.reset();  // nobody stores to this rank's memory any more

  std::lock_guard lock(outcomes().mutex);
  for (int peer = 0; peer < member.nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const std::span<const std::byte> of_peer = of_all[peer];
    Finding found = Finding::Works;
    if (of_peer.size() == with.size())
      found = static_cast<Finding>(
          std::min<uint8_t>(std::to_integer<uint8_t>(of_peer[static_cast<size_t>(member.rank())]),
                            static_cast<uint8_t>(Finding::LoadIsWrong)));
    findings.of_peers.push_back(found);
    if (!with[at]) continue;
    const bool works = findings.own[at] == Finding::Works && found == Finding::Works;
    outcomes().known[{.machine = &machine,
                      .device = device,
                      .peer_uuid = uuids[at],
                      .same_process = member.same_process(peer)}] =
        works ? PeerAccess::Works : PeerAccess::Broken;
  }
  return findings;
}

}  // namespace niccolite::transport
