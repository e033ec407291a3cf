#include "planner/routes.h"

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

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

/// A cache of routes for all communicators of the process.
class Found {
 public:
  Result<Routes> find(const Form& form, int nranks, const Options& options) {
    const std::lock_guard lock(mutex_);
    const Key key(&form, nranks, options.root, options.window, options.machines, options.rings);
    if (const auto known = routes_.find(key); known != routes_.end()) return known->second;
    const Routes routes = lowering::routes_of(TRY(form.build(nranks, options)), options.machines);
    // Roots of many communicators; each takes microseconds to milliseconds to find again.
    constexpr size_t kMost = 4096;
    if (routes_.size() >= kMost) routes_.erase(routes_.begin());
    routes_.emplace(key, routes);
    return routes;
  }

 private:
  std::mutex mutex_;
  using Key =
      std::tuple<const Form*, int, int, int, std::vector<int>, std::vector<std::vector<int>>>;
  std::map<Key, Routes> routes_;
};

}  // namespace

Result<Routes> find_routes(const Form& form, int nranks, Options options,
                           const schedule::Schedule& part) {
  // A way that one part excludes is excluded for the whole schedule (lowering::routes_of()).
  if (are_slots(part, lowering::routes_of(part, options.machines))) return Routes();
  options.only_rank = options.root;
  const schedule::Schedule of_root = TRY(form.build(nranks, options));
  const Routes left = lowering::routes_of(of_root, options.machines);
  bool are_excluded = !part.connections.empty();
  for (const schedule::Connection& connection : part.connections) {
    const auto known = left.of_tags().find(connection.tag);
    are_excluded &= known != left.of_tags().end() && known->second.way == Way::Slot;
  }
  if (are_excluded) return Routes();
  options.only_rank.reset();
  static Found* const found = new Found;  // never ends: threads may plan while the process does
  return found->find(form, nranks, options);
}

}  // namespace niccolite::planner
