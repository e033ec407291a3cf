// Resources of a communicator. Closing one takes the raw handle of the communicator, which the
// resource holds: destroying a communicator closes its resources first.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <string>

#include "buffer.h"
#include "communicator.h"
#include "communicators.h"
#include "config.h"
#include "errors.h"
#include "group.h"
#include "library.h"
#include "team.h"
#include "waiting.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

ncclComm_t as_communicator(uintptr_t handle) {
  return reinterpret_cast<ncclComm_t>(handle);  // NOLINT(performance-no-int-to-ptr)
}
ncclWindow_t as_window(uintptr_t handle) {
  return reinterpret_cast<ncclWindow_t>(handle);  // NOLINT(performance-no-int-to-ptr)
}

// Where the library stores a window's handle: at once, or when a group or background work ends.
struct WindowPlace {
  ncclWindow_t window = nullptr;
  uintptr_t handle() const { return reinterpret_cast<uintptr_t>(window); }
};

nb::tuple register_buffer(Communicator& communicator, nb::handle object) {
  Buffer buffer("buffer", object, false);
  void* handle = nullptr;
  const auto& function = library().CommRegister.loaded();
  communicator.enters("register_buffer");
  run(communicator,
      [&] { return function(communicator.handle, buffer.data(), buffer.bytes(), &handle); });
  return nb::make_tuple(reinterpret_cast<uintptr_t>(handle), buffer.bytes());
}

size_t register_window(nb::handle self, nb::handle object, int flags, WindowPlace& place) {
  auto& communicator = nb::cast<Communicator&>(self);
  Buffer buffer("buffer", object, false);
  const auto& function = library().CommWindowRegister.loaded();
  communicator.enters("register_window");
  Group::current().add(nb::borrow(self), &communicator);
  watch_for_interrupts();
  run(communicator, [&] {
    return function(communicator.handle, buffer.data(), buffer.bytes(), &place.window, flags);
  });
  return buffer.bytes();
}

template <typename Handle, typename Function, typename... Arguments>
uintptr_t pointer_of(const Function& function, Handle window, Arguments... arguments) {
  void* pointer = nullptr;
  check(function(window, arguments..., &pointer));
  return reinterpret_cast<uintptr_t>(pointer);
}

// (endpoint, offset) in the compute fabric.
template <typename Function, typename... Arguments>
nb::tuple endpoint_of(const Function& function, uintptr_t window, size_t offset,
                      Arguments... arguments) {
  ncclCftLeId endpoint = 0;
  size_t within = 0;
  check(function(as_window(window), offset, arguments..., &endpoint, &within));
  return nb::make_tuple(endpoint, within);
}

// ncclDevComm_t, of whatever version up to 2.32.
struct DevComm {
  alignas(16) std::array<std::byte, 512> bytes{};
  ncclDevComm_t* values() { return reinterpret_cast<ncclDevComm_t*>(bytes.data()); }
};

int create_pre_mul_sum(Communicator& communicator, uintptr_t scalar, int type, bool is_host) {
  ncclRedOp_t op;
  check(library().RedOpCreatePreMulSum(
      &op, reinterpret_cast<void*>(scalar),  // NOLINT(performance-no-int-to-ptr)
      static_cast<ncclDataType_t>(type), is_host ? ncclScalarHostImmediate : ncclScalarDevice,
      communicator.handle));
  return static_cast<int>(op);
}

}  // namespace

void bind_resources(nb::module_& module) {
  nb::class_<WindowPlace>(module, "WindowPlace")
      .def(nb::init<>())
      .def_prop_ro("handle", &WindowPlace::handle);
  nb::class_<DevComm>(module, "DevComm").def(nb::init<>()).def_prop_ro("ptr", [](DevComm& self) {
    return reinterpret_cast<uintptr_t>(self.values());
  });

  module.def("register_buffer", &register_buffer, nb::arg(), nb::arg().none());
  module.def("deregister_buffer", [](uintptr_t comm, uintptr_t handle) {
    check(library().CommDeregister(
        as_communicator(comm),
        reinterpret_cast<void*>(handle)));  // NOLINT(performance-no-int-to-ptr)
  });
  module.def("register_window", &register_window, nb::arg(), nb::arg().none(), nb::arg(),
             nb::arg());
  module.def("deregister_window", [](uintptr_t comm, uintptr_t window) {
    const auto& function = library().CommWindowDeregister.loaded();
    run(std::span<Communicator* const>(), std::span<ncclComm_t* const>(),
        [&] { return function(as_communicator(comm), as_window(window)); });
  });
  module.def("window_user_pointer", [](uintptr_t comm, uintptr_t window) {
    void* pointer = nullptr;
    check(library().WinGetUserPtr(as_communicator(comm), as_window(window), &pointer));
    return reinterpret_cast<uintptr_t>(pointer);
  });
  module.def("lsa_multimem_pointer", [](uintptr_t window, size_t offset) {
    return pointer_of(library().GetLsaMultimemDevicePointer, as_window(window), offset);
  });
  module.def("lsa_pointer", [](uintptr_t window, size_t offset, int rank) {
    return pointer_of(library().GetLsaDevicePointer, as_window(window), offset, rank);
  });
  module.def("peer_pointer", [](uintptr_t window, size_t offset, int peer) {
    return pointer_of(library().GetPeerDevicePointer, as_window(window), offset, peer);
  });
  module.def(
      "multimem_pointer", [](uintptr_t window, size_t offset, const ncclMultimemHandle_t& handle) {
        return pointer_of(library().GetMultimemDevicePointer, as_window(window), offset, handle);
      });
  module.def("multimem_endpoint", [](uintptr_t window, size_t offset) {
    return endpoint_of(library().GetMultimemDeviceLeInfo, window, offset);
  });
  module.def("cft_endpoint", [](uintptr_t window, size_t offset, int peer, const Team& team) {
    return endpoint_of(library().GetCftDeviceLeInfo, window, offset, peer, as_team(team));
  });
  module.def("peer_endpoint", [](uintptr_t window, size_t offset, int peer) {
    return endpoint_of(library().GetPeerDeviceLeInfo, window, offset, peer);
  });
  module.def("create_pre_mul_sum", &create_pre_mul_sum);
  module.def("destroy_operator", [](uintptr_t comm, int op) {
    check(library().RedOpDestroy(static_cast<ncclRedOp_t>(op), as_communicator(comm)));
  });
  module.def("create_dev_comm", [](Communicator& self, DevCommRequirements& wanted, DevComm& made) {
    const auto& function = library().DevCommCreate.loaded();
    self.enters("create_dev_comm");
    run(self, [&] { return function(self.handle, &wanted.values, made.values()); });
  });
  module.def("destroy_dev_comm", [](uintptr_t comm, DevComm& made) {
    check(library().DevCommDestroy(as_communicator(comm), made.values()));
  });
}

}  // namespace niccolite::python
