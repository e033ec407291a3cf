#include "communicators.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "communicator.h"
#include "config.h"
#include "errors.h"
#include "group.h"
#include "library.h"
#include "team.h"
#include "waiting.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

ncclUniqueId parse_id(const nb::bytes& bytes) {
  ncclUniqueId id;
  if (bytes.size() != sizeof id)
    throw_invalid("a unique id has " + std::to_string(sizeof id) + " bytes, not " +
                  std::to_string(bytes.size()));
  std::memcpy(&id, bytes.c_str(), sizeof id);
  return id;
}

nb::bytes as_bytes(const ncclUniqueId& id) { return nb::bytes(id.internal, sizeof id.internal); }

ncclConfig_t* values_of(std::optional<Config*> config) {
  return config && *config != nullptr ? &(*config)->values : nullptr;
}

// Runs `how`, a call named `name` that makes a communicator, from the communicator `parent` unless
// that is invalid. The library stores the new handle at once or, in a group, at the end of the
// group.
template <typename Make>
void make(nb::handle made, nb::handle parent, const char* name, Make&& how) {
  auto& communicator = nb::cast<Communicator&>(made);
  std::vector<Communicator*> callers = {&communicator};
  std::vector<ncclComm_t*> handles = {&communicator.handle};
  Group::current().add(nb::borrow(made), &communicator);
  // The call waits for ranks of the parent, so that only the parent's abort ends it.
  if (parent.is_valid()) {
    callers = {&nb::cast<Communicator&>(parent)};
    callers[0]->ask_names();
    handles.push_back(&callers[0]->handle);
    Group::current().add(nb::borrow(parent), callers[0]);
  }
  callers[0]->enters(name);
  watch_for_interrupts();
  communicator.works_aside |=
      run(callers, handles, [&] { return how(&communicator.handle); }) == ncclInProgress;
}

void forget_destroyed(Communicator& communicator) {
  communicator.forget(Communicator::End::Destroyed);
  communicator.in_flight.clear();
}

nb::bytes unique_id() {
  ncclUniqueId id;
  check(library().GetUniqueId(&id));
  return as_bytes(id);
}

void initialize(nb::handle made, int nranks, int rank, const std::vector<nb::bytes>& ids,
                std::optional<Config*> config) {
  std::vector<ncclUniqueId> parsed;
  for (const nb::bytes& id : ids) parsed.push_back(parse_id(id));
  const auto& init = library().CommInitRankScalable.loaded();
  auto& communicator = nb::cast<Communicator&>(made);
  communicator.nranks = nranks;
  communicator.rank = rank;
  make(made, nb::handle(), "init", [&](ncclComm_t* handle) {
    return init(handle, nranks, rank, static_cast<int>(parsed.size()), parsed.data(),
                values_of(config));
  });
}

void initialize_all(const std::vector<nb::handle>& made, const std::vector<int>& devices) {
  // The library stores the handles side by side.
  auto handles = std::vector<ncclComm_t>(made.size());
  std::vector<ncclComm_t*> places;
  for (ncclComm_t& handle : handles) places.push_back(&handle);
  if (Group::current().is_open())
    throw_invalid("init_all cannot stand in a group: the communicators are made at once");
  const auto& init = library().CommInitAll.loaded();
  watch_for_interrupts();
  run(std::span<Communicator* const>(), places,
      [&] { return init(handles.data(), static_cast<int>(handles.size()), devices.data()); });
  for (size_t i = 0; i < made.size(); ++i) nb::cast<Communicator&>(made[i]).handle = handles[i];
}

void split(nb::handle self, nb::handle made, int color, int key, std::optional<Config*> config) {
  const auto& parent = nb::cast<Communicator&>(self);
  const auto& function = library().CommSplit.loaded();
  make(made, self, "split", [&](ncclComm_t* child) {
    return function(parent.handle, color, key, child, values_of(config));
  });
}

void shrink(nb::handle self, nb::handle made, std::vector<int> excluded,
            std::optional<Config*> config, int flags) {
  const auto& parent = nb::cast<Communicator&>(self);
  const auto& function = library().CommShrink.loaded();
  make(made, self, "shrink", [&](ncclComm_t* child) {
    return function(parent.handle, excluded.data(), static_cast<int>(excluded.size()), child,
                    values_of(config), flags);
  });
}

void grow(nb::handle self, nb::handle made, int nranks, std::optional<nb::bytes> id, int rank,
          std::optional<Config*> config) {
  std::optional<ncclUniqueId> parsed;
  if (id) parsed = parse_id(*id);
  const auto& parent = nb::cast<Communicator&>(self);
  const auto& function = library().CommGrow.loaded();
  make(made, parent.handle != nullptr ? self : nb::handle(), "grow", [&](ncclComm_t* grown) {
    return function(parent.handle, nranks, parsed ? &*parsed : nullptr, rank, grown,
                    values_of(config));
  });
}

// Ends the communicator. The library refuses while a call is in progress; otherwise the handle is
// invalid after the call, also if the call returns an error.
void destroy(Communicator& communicator) {
  const auto& end_it = library().CommDestroy.loaded();
  library().CommGetAsyncError.loaded();
  const ncclComm_t handle = communicator.handle;
  const bool refuses = ask_async_error(communicator.handle) == ncclInProgress;
  watch_for_interrupts();
  communicator.enters("destroy");
  try {
    run(communicator, [&] { return end_it(handle); });
  } catch (...) {
    if (!refuses) forget_destroyed(communicator);
    throw;
  }
  forget_destroyed(communicator);
}

// Ends the communicator at once, also while another thread waits in one of its calls.
void abort(Communicator& communicator) {
  const auto& end_it = library().CommAbort.loaded();
  const ncclComm_t handle = take(communicator.handle);
  ncclResult_t result = ncclInProgress;
  {
    const nb::gil_scoped_release released;
    result = end_it(handle);
  }
  if (result != ncclSuccess) communicator.handle = handle;
  check(result);
  if (result != ncclSuccess) return;
  communicator.forget(Communicator::End::Aborted);
  communicator.in_flight.clear();
}

// Runs a call that takes the communicator, and perhaps flags, and may wait.
template <typename Function, typename... Arguments>
void call(nb::handle self, const char* name, const Function& function, Arguments... arguments) {
  auto& communicator = nb::cast<Communicator&>(self);
  communicator.enters(name);
  communicator.ask_names();
  const auto& loaded = function.loaded();
  const ncclComm_t handle = communicator.handle;
  Group::current().add(nb::borrow(self), &communicator);
  watch_for_interrupts();
  run(communicator, [&] { return loaded(handle, arguments...); });
}

// ncclCommProperties_t of NCCL 2.32. It has more fields than our header's type; an older
// library leaves them unset.
struct Properties : ncclCommProperties_t {
  uint64_t commHash = 0;
  int ginMinStride = 0;
  int ginConnectionType = 0;
  std::array<bool, 64> ginSupport{};
  size_t devCommRuntimeVersionSize = 0;
  bool cftSupport = false;
  bool cftMulticastSupport = false;
  bool cftCountedSupport = false;
};
static_assert(sizeof(Properties) == 152);

Properties properties(Communicator& communicator) {
  Properties answer{NCCL_COMM_PROPERTIES_INITIALIZER};
  int version = 0;
  check(library().GetVersion(&version));
  if (library().is_ours() || version >= static_cast<int>(kVersionOfTails)) {
    answer.size = sizeof answer;
    answer.version = kVersionOfTails;
  }
  check(library().CommQueryProperties(communicator.handle, &answer));
  return answer;
}

template <typename Field>
void bind_since_2_32(nb::class_<Properties>& bound, const char* name, Field Properties::*member) {
  bound.def_prop_ro(name, [member](const Properties& self) {
    return self.version >= kVersionOfTails ? std::optional(self.*member) : std::nullopt;
  });
}

void bind_properties(nb::module_& module) {
  nb::class_<Properties> bound(module, "Properties");
  bound.def_ro("rank", &Properties::rank)
      .def_ro("n_ranks", &Properties::nRanks)
      .def_ro("cuda_dev", &Properties::cudaDev)
      .def_ro("nvml_dev", &Properties::nvmlDev)
      .def_ro("device_api_support", &Properties::deviceApiSupport)
      .def_ro("multimem_support", &Properties::multimemSupport)
      .def_prop_ro("gin_type",
                   [](const Properties& self) { return static_cast<int>(self.ginType); })
      .def_ro("n_lsa_teams", &Properties::nLsaTeams)
      .def_ro("host_rma_support", &Properties::hostRmaSupport)
      .def_prop_ro("railed_gin_type",
                   [](const Properties& self) { return static_cast<int>(self.railedGinType); });
  bind_since_2_32(bound, "comm_hash", &Properties::commHash);
  bind_since_2_32(bound, "gin_min_stride", &Properties::ginMinStride);
  bind_since_2_32(bound, "gin_connection_type", &Properties::ginConnectionType);
  bind_since_2_32(bound, "gin_support", &Properties::ginSupport);
  bind_since_2_32(bound, "dev_comm_runtime_version_size", &Properties::devCommRuntimeVersionSize);
  bind_since_2_32(bound, "cft_support", &Properties::cftSupport);
  bind_since_2_32(bound, "cft_multicast_support", &Properties::cftMulticastSupport);
  bind_since_2_32(bound, "cft_counted_support", &Properties::cftCountedSupport);
}

void bind_teams(nb::module_& module) {
  module.def("team_world",
             [](Communicator& self) { return from_team(library().TeamWorld(self.handle)); });
  module.def("team_lsa",
             [](Communicator& self) { return from_team(library().TeamLsa(self.handle)); });
  module.def("team_rail",
             [](Communicator& self) { return from_team(library().TeamRail(self.handle)); });
  module.def("team_cft", [](Communicator& self, int mode) {
    return from_team(library().TeamCft(self.handle, static_cast<ncclCftTeamMode_t>(mode)));
  });
  module.def("team_cft_multimem",
             [](Communicator& self) { return from_team(library().TeamCftMultimem(self.handle)); });
  module.def("team_rank_to_world", [](Communicator& self, const Team& team, int rank) {
    return library().TeamRankToWorld(self.handle, as_team(team), rank);
  });
  module.def("team_rank_to_lsa", [](Communicator& self, const Team& team, int rank) {
    return library().TeamRankToLsa(self.handle, as_team(team), rank);
  });
}

}  // namespace

void bind_communicators(nb::module_& module) {
  nb::class_<Communicator>(module, "Communicator")
      .def(nb::init<>())
      .def_prop_rw(
          "handle",
          [](const Communicator& self) { return reinterpret_cast<uintptr_t>(self.handle); },
          [](Communicator& self, uintptr_t handle) {
            self.handle =
                reinterpret_cast<ncclComm_t>(handle);  // NOLINT(performance-no-int-to-ptr)
          })
      .def_prop_ro(
          "is_settled",
          [](const Communicator& self) { return self.handle == nullptr || self.is_settled(); })
      .def("require", &Communicator::require)
      .def_prop_ro("nranks", &Communicator::ask_nranks)
      .def_prop_ro("rank", &Communicator::ask_rank)
      .def_prop_ro("device", &Communicator::ask_device);
  bind_properties(module);
  bind_teams(module);

  module.def("unique_id", &unique_id);
  module.def("initialize", &initialize, nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg().none());
  module.def("initialize_all", &initialize_all);
  module.def("split", &split, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  module.def("shrink", &shrink, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  module.def("grow", &grow, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg().none());
  module.def("destroy", &destroy);
  module.def("abort", &abort);
  module.def("finalize", [](nb::handle self) { call(self, "finalize", library().CommFinalize); });
  module.def("revoke",
             [](nb::handle self, int flags) { call(self, "revoke", library().CommRevoke, flags); });
  module.def("suspend", [](nb::handle self, int flags) {
    call(self, "suspend", library().CommSuspend, flags);
  });
  module.def("resume", [](nb::handle self) { call(self, "resume", library().CommResume); });
  module.def("properties", &properties);
  module.def("comm_unique_id", [](Communicator& self) {
    ncclUniqueId id;
    const auto& function = library().CommGetUniqueId.loaded();
    self.enters("get_unique_id");
    run(self, [&] { return function(self.handle, &id); });
    return as_bytes(id);
  });
  module.def("async_error", [](Communicator& self) {
    ncclResult_t state = ncclSuccess;
    check(library().CommGetAsyncError(self.handle, &state));
    return static_cast<int>(state);
  });
  module.def("last_error", [](Communicator& self) {
    const char* text = library().GetLastError(self.handle);
    return std::string(text != nullptr ? text : "");
  });
  module.def("memory_statistic", [](Communicator& self, int which) {
    uint64_t value = 0;
    check(library().CommMemStats(self.handle, static_cast<ncclCommMemStat_t>(which), &value));
    return value;
  });

  module.def("group_start", [] { Group::current().start(); });
  module.def("is_group_open", [] { return Group::current().is_open(); });
  module.def("group_end", [] { Group::current().end(); });
  module.def("group_simulate_end", [] { return Group::current().end_simulated(); });
}

}  // namespace niccolite::python
