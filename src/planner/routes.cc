#include "planner/routes.h"

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "planner/settings.h"

namespace niccolite::planner {
namespace {

using algorithms::Options;
using lowering::Routes;
using lowering::Way;

/// Do the routes leave any of the connections of `part` but slots?
bool are_slots(const schedule::Schedule& part, const Routes& routes) {
  for (const schedule::Connection& connection : part.connections)
    if (routes.of(connection.tag).way != Way::Slot) return false;
  return true;
}

Routes routes_of(const schedule::Schedule& schedule, const Options& options, ByTeam by_team) {
  return lowering::routes_of(schedule, options.machines, by_team != ByTeam::Nothing,
                             by_team != ByTeam::Words);
}

/// A cache of routes for all communicators of the process.
class Found {
 public:
  Result<Routes> find(const Form& form, int nranks, const Options& options, ByTeam by_team) {
    const std::lock_guard lock(mutex_);
    const Key key(&form, nranks, options.root, options.window, options.machines, options.rings,
                  by_team);
    if (const auto known = routes_.find(key); known != routes_.end()) return known->second;
    const Routes routes = routes_of(TRY(form.build(nranks, options)), options, by_team);
    // Roots of many communicators; each takes microseconds to milliseconds to find again.
    constexpr size_t kMost = 4096;
    if (routes_.size() >= kMost) routes_.erase(routes_.begin());
    routes_.emplace(key, routes);
    return routes;
  }

 private:
  std::mutex mutex_;
  using Key = std::tuple<const Form*, int, int, int, std::vector<int>,
                         std::vector<std::vector<int>>, ByTeam>;
  std::map<Key, Routes> routes_;
};

Found& all_found() {
  static Found* const found = new Found;  // never ends: threads may plan while the process does
  return *found;
}

}  // namespace

Result<Routes> find_routes(const Form& form, int nranks, Options options,
                           const schedule::Schedule& part, ByTeam by_team) {
  // A way that one part excludes is excluded for the whole schedule (lowering::routes_of()).
  if (are_slots(part, routes_of(part, options, by_team))) return Routes();
  options.only_rank = options.root;
  const schedule::Schedule of_root = TRY(form.build(nranks, options));
  const Routes left = routes_of(of_root, options, by_team);
  bool are_excluded = !part.connections.empty();
  for (const schedule::Connection& connection : part.connections) {
    const auto known = left.of_tags().find(connection.tag);
    are_excluded &= known != left.of_tags().end() && known->second.way == Way::Slot;
  }
  if (are_excluded) return Routes();
  options.only_rank.reset();
  return all_found().find(form, nranks, options, by_team);
}

bool goes_by_team(const Settings& settings, const Form& form, executor::Protocol protocol) {
  // Chains go from rank to rank, networks that reduce do without; and larger schedules are not
  // looked at.
  if (form.is_of_messages() || form.traits().through_network || settings.nranks < 2 ||
      settings.nranks > algorithms::kMaxDirectRanks ||
      form.traits().pattern == algorithms::Pattern::Ring) {
    return false;
  }
  Result<Routes> routes = all_found().find(form, settings.nranks, options_of(settings),
                                           by_team_of({.protocol = protocol, .by_team = true}));
  return routes.is_ok() && routes->use_team();
}

}  // namespace niccolite::planner
