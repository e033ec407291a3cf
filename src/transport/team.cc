#include "transport/team.h"

#include <algorithm>
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

  Bytes encode() const {
    Writer writer;
    writer.text(obstacle.substr(0, kMostText));
    writer.u8(has_failed ? 1 : 0);
    writer.text(address);
    writer.raw(std::as_bytes(std::span(token)));
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

Team::~Team() = default;

/// Making: the state of a team that is being made. A driver call that never returns keeps it.
struct Team::Making {
  gpu::Machine& machine;
  const int device;
  const executor::FifoShape shape;
  const size_t window_bytes;
  const int rank;
  const std::function<Status(gpu::Machine&, int, const executor::TeamTrial&)> try_step;
  std::unique_ptr<Team> team{};
  int first = 0;  // rank of this machine
  int count = 0;  // of this machine's ranks
  std::shared_ptr<TeamOffer> offer{};
  std::shared_ptr<DescriptorServer> server{};
  TeamWord word{};      // of this rank, in the present step
  TeamWord of_first{};  // after the first step

  gpu::Multicast& multicast() const { return machine.multicast(); }

  void number(std::span<const int> machines) {
    std::map<int, int> counts;  // ranks of each machine so far
    const int own = machines[static_cast<size_t>(rank)];
    first = rank;
    for (int peer = 0; peer < static_cast<int>(machines.size()); ++peer) {
      const int machine = machines[static_cast<size_t>(peer)];
      team->numbers_.push_back(counts[machine]++);
      if (machine == own) first = std::min(first, peer);
    }
    count = counts[own];
  }

  Status create() {
    const auto members = static_cast<size_t>(count);
    const size_t slots = shape.slots_bytes() * lowering::kTeamPlaces * members;
    const auto up = [](size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; };
    team->bound_ = up(std::max(slots, executor::kTrialBytes * members),
                      TRY(multicast().binding_granularity(count)));
    team->range_ = up(team->bound_ + window_bytes, TRY(multicast().granularity(count)));
    if (rank != first) return {};
    team->team_ = TRY(multicast().create(count, team->range_));
    word.token = TRY(draw_token());
    offer = TeamOffer::make(word.token, TRY(multicast().export_team(team->team_)));
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
      team->team_ = TRY(multicast().import_team(std::move(descriptor), team->range_));
    }
    return multicast().join(team->team_, device);
  }

  Status bind() {
    team->memory_ = TRY(machine.allocate(device, team->bound_, /*shareable=*/true));
    TRY(team->bind());
    team->mapping_ = TRY(multicast().map(team->team_, device));
    return {};
  }

  Status try_step_of(executor::TeamTrial::Step step) {
    return try_step(machine, device,
                    {.step = step,
                     .team = team->mapping_.data(),
                     .own = static_cast<const std::byte*>(team->memory_.data()),
                     .number = static_cast<uint32_t>(team->numbers_[static_cast<size_t>(rank)]),
                     .members = static_cast<uint32_t>(count)});
  }
  Status store_pattern() { return try_step_of(executor::TeamTrial::Step::Store); }
  Status look_at_patterns() { return try_step_of(executor::TeamTrial::Step::Look); }
};

Result<Team::Outcome> Team::make(const Options& options) {
  const auto making = std::make_shared<Making>(Making{options.machine, options.device,
                                                      options.shape, options.window_bytes,
                                                      options.member.rank(), options.try_step});
  making->team.reset(new Team(options.machine, options.device, options.shape));
  making->team->rank_ = making->rank;
  making->number(options.machines);
  const auto in_time = [&](const char* what, Status (Making::*step)()) -> TeamWord {
    const std::optional<Status> status =
        run_within("nccl team", kPatience, [making, step] { return ((*making).*step)(); });
    if (status && status->is_ok()) return std::move(making->word);
    return {.obstacle = obstacle(what, status), .has_failed = true};
  };

  TeamWord word;
  if (!options.refusal.empty()) {
    word.obstacle = options.refusal;
  } else if (making->count < 2 || making->count > kMostRanks) {
    word.obstacle = fmt::format("{} ranks can be in its team, and a team has 2 to {}",
                                making->count, kMostRanks);
  } else if (!options.machine.multicast().has_multicast(options.device)) {
    word.obstacle = "its GPU cannot be in a multicast team";
  } else {
    word = in_time("making a multicast team", &Making::create);
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
    TRY(tell(options, in_time(what, step), outcome));
    if (!outcome.obstacle.empty()) return outcome;
  }
  outcome.team = std::move(making->team);
  return outcome;
}

Status Team::bind() { return machine_.multicast().bind(team_, device_, 0, memory_.data(), bound_); }

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
      Status status = team->machine_.multicast().bind(team->team_, team->device_, at,
                                                      pieces[i].memory, pieces[i].bytes);
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
    machine_.multicast()
        .unbind(team_, device_, offset, piece.bytes)
        .ignore("the binding ends with the team at the latest");
    offset += piece.bytes;
  }
}

void Team::set_slots(const executor::Port& port, executor::PortAddress& address) const {
  const bool is_store = port.route.way == lowering::Way::TeamStore;
  const int owner = port.is_send == is_store ? rank_ : port.peer;
  const auto place =
      static_cast<size_t>(numbers_[static_cast<size_t>(owner)] * lowering::kTeamPlaces + port.tag -
                          lowering::kFirstTeamTag);
  const size_t offset = place * shape_.slots_bytes();
  address.slots = static_cast<std::byte*>(memory_.data()) + offset;
  address.team = mapping_.data() + offset;
}

Status Team::suspend() {
  TRY(machine_.multicast().unbind(team_, device_, 0, bound_));
  return machine_.suspend_memory(memory_);
}

Status Team::resume() {
  TRY(machine_.resume_memory(memory_));
  return bind();
}

}  // namespace niccolite::transport
