#include "bootstrap/member.h"

#include <algorithm>

#include "base/authentication.h"
#include "bootstrap/session.h"

namespace niccolite::bootstrap {
namespace {

Status check_peer(const Local& local, int peer) {
  if (peer >= 0 && peer < local.nranks) return {};
  return Status::invalid_argument("rank {} is not one of the {} ranks of the communicator", peer,
                                  local.nranks);
}

Status check_size(size_t bytes, size_t most, const char* what) {
  if (bytes <= most) return {};
  return Status::invalid_argument("{} of {} bytes, at most {} are allowed", what, bytes, most);
}

}  // namespace

Result<std::unique_ptr<Member>> Member::join(const JoinOptions& options) {
  if (options.nranks < 1 || options.nranks > static_cast<int>(kMaxRanks))
    return Status::invalid_argument("nranks is {}, it must be from 1 to {}", options.nranks,
                                    kMaxRanks);
  if (options.rank < 0 || options.rank >= options.nranks)
    return Status::invalid_argument("rank is {}, it must be from 0 to {}", options.rank,
                                    options.nranks - 1);
  auto [session, local] = TRY(Session::enter(options));
  Status status = session->wait_ready(local, options.deadline);
  if (!status.is_ok()) {
    session->leave(session->all_ranks(), local);
    return status;
  }
  std::shared_ptr<Group> group = session->all_ranks();
  return std::unique_ptr<Member>(
      new Member(std::move(session), std::move(group), std::move(local)));
}

void Member::give_up(const JoinOptions& options, const Status& why) {
  Result<std::pair<std::shared_ptr<Session>, std::shared_ptr<Local>>> entered =
      Session::enter(options, why);
  if (!entered.is_ok()) return;
  auto [session, local] = std::move(entered).take();
  session->leave(session->all_ranks(), local);
}

std::unique_ptr<Member> Member::derive(const DeriveOptions& options) {
  auto [group, local] = session_->derive(*group_, options);
  return std::unique_ptr<Member>(new Member(session_, std::move(group), std::move(local)));
}

Result<Member::Shrunk> Member::shrink(const ShrinkOptions& options) {
  TRY(check_size(options.mine.size(), kMaxContribution, "a contribution to a shrink"));
  for (const int rank : options.excluded) TRY(check_peer(*local_, rank));
  const std::vector<int32_t>& excluded = options.excluded;
  Survivors& survivors = group_->survivors();
  uint32_t number = 0;
  {
    const Roster::Lock lock = group_->roster().lock();
    number = TRY(survivors.begin(local_->rank, excluded));
  }
  Writer name;
  name.u64(options.seed);
  name.u32(number);
  for (const int32_t rank : excluded) name.i32(rank);
  DeriveOptions derived{.id = authentication::fingerprint(name.bytes()) | 1,
                        .ranks = {},
                        .rank = 0,
                        .abort = options.abort};
  for (int rank = 0; rank < local_->nranks; ++rank) {
    if (std::binary_search(excluded.begin(), excluded.end(), rank)) continue;
    if (rank == local_->rank) derived.rank = static_cast<int>(derived.ranks.size());
    derived.ranks.push_back(rank);
  }
  // The member exists before this rank contributes, because a peer that has heard from all may
  // send.
  Shrunk shrunk{.member = derive(derived), .contributions = {}};
  Roster::Lock lock = group_->roster().lock();
  auto agreed = survivors.agree(lock, shrunk.member->local_, local_->rank, excluded, number,
                                options.mine, options.deadline);
  if (!agreed.is_ok()) shrunk.member->group_->abandon();
  shrunk.contributions = TRY(std::move(agreed));
  return shrunk;
}

uint64_t Member::id() const { return group_->id(); }

Member::Member(std::shared_ptr<Session> session, std::shared_ptr<Group> group,
               std::shared_ptr<Local> local)
    : session_(std::move(session)), group_(std::move(group)), local_(std::move(local)) {}

Member::~Member() {
  leave();
  // In a child made by fork() the session's threads do not exist and its links are the parent's:
  // touch nothing. (Without the few bytes that this takes, the child ends here.)
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
  if (!session_->belongs_to_this_process()) (void)new std::shared_ptr<Session>(std::move(session_));
}

int Member::rank() const { return local_->rank; }
int Member::nranks() const { return local_->nranks; }

bool Member::same_process(int peer) const {
  Roster& roster = group_->roster();
  const Roster::Lock lock = roster.lock();
  return roster.process_of(peer) == roster.self();
}

Address Member::interface() const {
  Roster& roster = group_->roster();
  const Roster::Lock lock = roster.lock();
  return roster.process(roster.self()).address.with_port(0);
}

authentication::Secret Member::secret(std::string_view purpose) const {
  Writer group;
  group.u64(group_->id());
  return authentication::derive(session_->secret(), purpose, group.bytes());
}

std::string Member::host(int peer) const {
  Roster& roster = group_->roster();
  const Roster::Lock lock = roster.lock();
  return roster.process(roster.process_of(peer)).address.host();
}

ProcessId Member::process(int peer) const {
  Roster& roster = group_->roster();
  const Roster::Lock lock = roster.lock();
  return roster.process(roster.process_of(peer)).origin.process;
}

std::string Member::describe(int peer) const {
  Roster& roster = group_->roster();
  const Roster::Lock lock = roster.lock();
  return roster.process(roster.process_of(peer)).origin.text();
}

Result<Gathered> Member::all_gather(std::span<const std::byte> mine, Deadline deadline) {
  TRY(check_size(mine.size(), kMaxContribution, "a contribution to an all-gather"));
  Roster::Lock lock = group_->roster().lock();
  return group_->gathers().all_gather(lock, *local_, mine, deadline);
}

Status Member::barrier(Deadline deadline) { return all_gather({}, deadline).status(); }

void Member::explain_waits(std::string what) {
  const Roster::Lock lock = group_->roster().lock();
  local_->gathers_for = std::move(what);
}

Status Member::send(int peer, uint32_t tag, std::span<const std::byte> message) {
  TRY(check_peer(*local_, peer));
  TRY(check_size(message.size(), kMaxMessage, "a message"));
  const Roster::Lock lock = group_->roster().lock();
  return group_->mailroom().send(*local_, peer, tag, message);
}

Result<Bytes> Member::receive(int peer, uint32_t tag, Deadline deadline) {
  TRY(check_peer(*local_, peer));
  Roster::Lock lock = group_->roster().lock();
  return group_->mailroom().receive(lock, *local_, peer, tag, deadline);
}

void Member::serve(Handler handler) {
  const Roster::Lock lock = group_->roster().lock();
  group_->mailroom().serve(*local_, std::move(handler));
}

Result<Bytes> Member::request(int peer, std::span<const std::byte> message, Deadline deadline) {
  const Query query{.peer = peer, .message = message};
  return std::move(request(std::span(&query, 1), deadline).front());
}

Result<Bytes> Member::request(int peer, std::span<const std::byte> message, Deadline deadline,
                              Abort& cancel) {
  const int listener = cancel.listen([this] {
    const Roster::Lock lock = group_->roster().lock();
    local_->changed.notify_all();
  });
  const Query query{.peer = peer, .message = message};
  Result<Bytes> answer =
      std::move(request(std::span(&query, 1), deadline, Patience::UntilDeadline, &cancel).front());
  cancel.forget(listener);
  return answer;
}

std::vector<Result<Bytes>> Member::request(std::span<const Query> queries, Deadline deadline,
                                           Patience patience, const Abort* cancel) {
  Status refused;
  size_t sound = 0;  // queries before the refused one
  for (; sound < queries.size(); ++sound) {
    refused = check_peer(*local_, queries[sound].peer);
    if (refused.is_ok())
      refused = check_size(queries[sound].message.size(), kMaxMessage, "a request");
    if (!refused.is_ok()) break;
  }
  Roster::Lock lock = group_->roster().lock();
  std::vector<Result<Bytes>> answers =
      group_->mailroom().request(lock, *local_, queries.first(sound),
                                 {.deadline = deadline, .patience = patience, .cancel = cancel});
  if (!refused.is_ok() && (sound == 0 || answers.back().is_ok()))
    answers.emplace_back(std::move(refused));
  return answers;
}

void Member::give_up_on(int peer) { session_->give_up_on(*group_, peer); }
bool Member::is_absent(int peer) { return session_->is_absent(*group_, peer); }

Status Member::notify(int peer, std::span<const std::byte> message) {
  TRY(check_peer(*local_, peer));
  TRY(check_size(message.size(), kMaxMessage, "a request"));
  const Roster::Lock lock = group_->roster().lock();
  return group_->mailroom().notify(*local_, peer, message);
}

bool Member::has_left(int peer) const {
  const Roster::Lock lock = group_->roster().lock();
  return group_->roster().has_left(peer);
}

void Member::on_peer_lost(std::function<void(int rank, const Status& why)> callback) {
  session_->on_peer_lost(group_, local_, std::move(callback));
}

void Member::leave() {
  if (session_->belongs_to_this_process()) session_->leave(group_, local_);
}

}  // namespace niccolite::bootstrap
