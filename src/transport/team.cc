#include "transport/team.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "base/thread.h"
#include "base/wire.h"
#include "gpu/machine.h"
#include "transport/descriptor_server.h"
#include "transport/shareable.h"

namespace niccolite::transport {
namespace {

// Time for a call of the driver about a team: without a fabric manager, some never return.
constexpr std::chrono::milliseconds kPatience{5000};
constexpr const char* kRemedy = "NCCL_NVLS_ENABLE=0 on all ranks does without it from the start";

}  // namespace

/// A team of this process that others import.
class TeamOffer final : public Shareable {
 public:
  static std::shared_ptr<TeamOffer> make(const Token& token, Fd descriptor) {
    std::shared_ptr<TeamOffer> offer(new TeamOffer(token, std::move(descriptor)));
    publish(offer);
    return offer;
  }
  Result<Fd> export_descriptor() const override { return descriptor_.duplicate(); }

 private:
  TeamOffer(const Token& token, Fd descriptor)
      : Shareable(token), descriptor_(std::move(descriptor)) {}
  const Fd descriptor_;
};

/// TeamWord: a rank's outcome of a step, for all ranks.
struct TeamWord {
  std::string obstacle{};   // empty: none
  bool has_failed = false;  // else the rank has not tried
  // After the first step, of the first rank of a machine: where the team is.
  std::string address{};
  Token token{};
  uint64_t parts_in_use = 0;  // of a shared range

  Bytes encode() const {
    Writer writer;
    writer.text(obstacle.substr(0, kMostText));
    writer.u8(has_failed ? 1 : 0);
    writer.text(address);
    writer.raw(std::as_bytes(std::span(token)));
    writer.u64(parts_in_use);
    return std::move(writer).take();
  }
  static Result<TeamWord> decode(std::span<const std::byte> bytes, int rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(bytes, origin);
    TeamWord word;
    word.obstacle = reader.text(kMostText);
    word.has_failed = reader.u8() != 0;
    word.address = reader.text(256);
    word.token = read_token(reader);
    word.parts_in_use = reader.u64();
    TRY(reader.finish());
    return word;
  }
  static constexpr size_t kMostText = 1024;
};

namespace {

/// All ranks' words; `outcome` gets the first obstacle.
Result<std::vector<TeamWord>> tell(const Team::Options& options, const TeamWord& mine,
                                   Team::Outcome& outcome) {
  const bootstrap::Gathered gathered =
      TRY(options.member.all_gather(mine.encode(), options.deadline));
  std::vector<TeamWord> words;
  for (int rank = 0; rank < options.member.nranks(); ++rank) {
    TeamWord word = TRY(TeamWord::decode(gathered[rank], rank));
    if (outcome.obstacle.empty() && !word.obstacle.empty()) {
      outcome.obstacle = fmt::format("rank {}: {}", rank, word.obstacle);
      outcome.has_failed = word.has_failed;
    }
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace

Team::~Team() {
  if (part_ < 0) return;
  unbind().ignore("the binding ends with the team at the latest");
  memory_.reset();
  // Only now: a communicator that takes the part binds its own memory there.
  range_->give_part_back(part_);
}

/// Making: the state of a team that is being made. A driver call that never returns keeps it.
struct Team::Making {
  gpu::Machine& machine;
  const int device;
  const executor::TeamSlots slots;
  const size_t window_bytes;
  const int parts;
  const int rank;
  const std::function<Status(gpu::Machine&, int, const executor::TeamTrial&)> try_step;
  std::unique_ptr<Team> team{};
  int first = 0;  // rank of this machine
  int count = 0;  // of this machine's ranks
  std::shared_ptr<TeamOffer> offer{};
  std::shared_ptr<DescriptorServer> server{};
  TeamWord word{};      // of this rank, in the present step
  TeamWord of_first{};  // after the first step

  void number(std::span<const int> machines) {
    std::map<int, int> counts;  // ranks of each machine so far
    const int own = machines[static_cast<size_t>(rank)];
    first = rank;
    for (int peer = 0; peer < static_cast<int>(machines.size()); ++peer) {
      const int machine = machines[static_cast<size_t>(peer)];
      team->numbers_.push_back(counts[machine]++);
      if (machine == own) first = std::min(first, peer);
    }
    count = team->members_ = counts[own];
  }

  Status create() {
    const auto members = static_cast<size_t>(count);
    team->range_ = TRY(TeamRange::plan(
        machine, device,
        {.members = count,
         .parts = parts,
         .part_bytes = std::max(slots.bytes(count), executor::kTrialBytes * members),
         .window_bytes = window_bytes}));
    team->range_->take_part(0);  // of a range that nobody else has yet
    team->part_ = 0;
    if (rank != first) return {};
    word.token = TRY(draw_token());
    offer = TeamOffer::make(word.token, TRY(team->range_->create()));
    server = TRY(DescriptorServer::instance());
    word.address = server->address();
    return {};
  }

  Status join() {
    if (rank != first) {
      Fd descriptor;
      if (const std::shared_ptr<Shareable> here = Shareable::find(of_first.token))
        descriptor = TRY(here->export_descriptor());
      else
        descriptor =
            TRY(fetch_descriptor(of_first.address, of_first.token, Deadline::after(kPatience)));
      TRY(team->range_->import(std::move(descriptor)));
    }
    return team->range_->join();
  }

  Status bind() {
    TRY(bind_memory(team->range_->part_bytes()));
    return team->range_->map();
  }
  Status bind_part() { return bind_memory(team->range_->whole(slots.bytes(count))); }
  Status bind_memory(size_t bytes) {
    team->bytes_ = bytes;
    team->memory_ = TRY(machine.allocate(device, bytes, /*shareable=*/true));
    return team->bind();
  }

  Status try_step_of(executor::TeamTrial::Step step) {
    return try_step(machine, device,
                    {.step = step,
                     .team = team->range_->at(team->offset()),
                     .own = static_cast<const std::byte*>(team->memory_.data()),
                     .number = static_cast<uint32_t>(team->numbers_[static_cast<size_t>(rank)]),
                     .members = static_cast<uint32_t>(count)});
  }
  Status store_pattern() { return try_step_of(executor::TeamTrial::Step::Store); }
  Status look_at_patterns() { return try_step_of(executor::TeamTrial::Step::Look); }
};

std::shared_ptr<Team::Making> Team::begin(const Options& options) {
  auto making = std::make_shared<Making>(Making{options.machine, options.device, options.slots,
                                                options.window_bytes, options.parts,
                                                options.member.rank(), options.try_step});
  making->team.reset(new Team(options.machine, options.device, options.slots));
  making->team->rank_ = making->rank;
  making->number(options.machines);
  return making;
}

TeamWord Team::in_time(const std::shared_ptr<Making>& making, const char* what,
                       Status (Making::*step)()) {
  const std::optional<Status> status =
      run_within("nccl team", kPatience, [making, step] { return ((*making).*step)(); });
  if (status && status->is_ok()) return std::move(making->word);
  return {.obstacle = obstacle(what, status), .has_failed = true};
}

// The part of each machine's team that none of its ranks uses; all ranks find the same ones. A rank
// that makes two communicators at once may have given the part away since it told. The switch and
// the team's addresses have been tried when the team was made.
Result<std::optional<Team::Outcome>> Team::share(const Options& options) {
  const std::shared_ptr<Making> making = begin(options);
  making->team->range_ = options.shared;
  TeamWord word{.obstacle = options.refusal, .parts_in_use = options.shared->parts_in_use()};
  if (making->slots.bytes(making->count) > options.shared->part_bytes())
    word.obstacle = "the slots are larger than a part";
  Outcome outcome;
  const std::vector<TeamWord> words = TRY(tell(options, word, outcome));
  if (!outcome.obstacle.empty()) return std::optional<Outcome>();
  std::map<int, uint64_t> in_use;  // by machine
  for (size_t rank = 0; rank < words.size(); ++rank)
    in_use[options.machines[rank]] |= words[rank].parts_in_use;
  const int parts = options.shared->parts();
  for (const auto& [machine, bits] : in_use)
    if (std::countr_one(bits) >= parts) return std::optional<Outcome>();
  const int part = std::countr_one(in_use[options.machines[static_cast<size_t>(making->rank)]]);

  word = {};
  if (!options.shared->take_part(part)) {
    word.obstacle = "another communicator has the part";
  } else {
    making->team->part_ = part;
    word = in_time(making, "binding memory to a multicast team", &Making::bind_part);
  }
  TRY(tell(options, word, outcome));
  if (!outcome.obstacle.empty() && !outcome.has_failed) return std::optional<Outcome>();
  if (outcome.obstacle.empty()) outcome.team = std::move(making->team);
  outcome.is_shared = true;
  return std::optional(std::move(outcome));
}

Result<Team::Outcome> Team::make(const Options& options) {
  if (options.shared != nullptr) {
    std::optional<Outcome> shared = TRY(share(options));
    if (shared) return *std::move(shared);
  }
  const std::shared_ptr<Making> making = begin(options);
  TeamWord word;
  if (!options.refusal.empty()) {
    word.obstacle = options.refusal;
  } else if (making->count < 2 || making->count > kMostRanks) {
    word.obstacle = fmt::format("a team has 2 to {} ranks, and its own would have {}", kMostRanks,
                                making->count);
  } else if (!options.machine.multicast().has_multicast(options.device)) {
    word.obstacle = "its GPU cannot be in a multicast team";
  } else {
    word = in_time(making, "making a multicast team", &Making::create);
  }
  Outcome outcome;
  std::vector<TeamWord> words = TRY(tell(options, word, outcome));
  if (!outcome.obstacle.empty()) return outcome;
  making->of_first = std::move(words[static_cast<size_t>(making->first)]);
  making->word = {};
  constexpr std::pair<const char*, Status (Making::*)()> kSteps[]{
      {"joining a multicast team", &Making::join},
      {"binding memory to a multicast team", &Making::bind},
      {"storing to a multicast team", &Making::store_pattern},
      {"trying a multicast team", &Making::look_at_patterns}};
  for (const auto& [what, step] : kSteps) {
    TRY(tell(options, in_time(making, what, step), outcome));
    if (!outcome.obstacle.empty()) return outcome;
  }
  outcome.team = std::move(making->team);
  return outcome;
}

Status Team::bind() {
  TRY(range_->bind(offset(), memory_.data(), bytes_));
  is_bound_ = true;
  return {};
}

Status Team::unbind() {
  if (!is_bound_) return {};
  is_bound_ = false;
  return range_->unbind(offset(), bytes_);
}

std::string Team::obstacle(const char* what, const std::optional<Status>& status) {
  if (status) return fmt::format("{}: {}. {}", what, status->message(), kRemedy);
  return fmt::format(
      "{} has not ended in {} s: is the fabric manager of the machine's switches at work? {}", what,
      kPatience.count() / 1000, kRemedy);
}

std::optional<Status> Team::bind_window(const std::shared_ptr<Team>& team, size_t offset,
                                        std::vector<Piece> pieces,
                                        std::shared_ptr<const void> keep) {
  const auto bind = [team, offset, pieces = std::move(pieces), keep = std::move(keep)]() -> Status {
    size_t at = offset;
    for (size_t i = 0; i < pieces.size(); at += pieces[i].bytes, ++i) {
      Status status = team->range_->bind(at, pieces[i].memory, pieces[i].bytes);
      if (status.is_ok()) continue;
      team->unbind_window(offset, std::span(pieces).first(i));
      return status;
    }
    return {};
  };
  return run_within("nccl team", kPatience, bind);
}

void Team::unbind_window(size_t offset, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    range_->unbind(offset, piece.bytes).ignore("the binding ends with the team at the latest");
    offset += piece.bytes;
  }
}

void Team::set_slots(const executor::Port& port, executor::Protocol protocol,
                     executor::PortAddress& address) const {
  const bool is_store = port.route.way == lowering::Way::TeamStore;
  const int owner = port.is_send == is_store ? rank_ : port.peer;
  const size_t slots =
      slots_.offset(protocol, members_, numbers_[static_cast<size_t>(owner)], port.tag);
  address.slots = static_cast<std::byte*>(memory_.data()) + slots;
  address.team = range_->at(offset() + slots);
}

Status Team::suspend() {
  TRY(unbind());
  return machine_.suspend_memory(memory_);
}

Status Team::resume() {
  TRY(machine_.resume_memory(memory_));
  return bind();
}

}  // namespace niccolite::transport
