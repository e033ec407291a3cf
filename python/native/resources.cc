// What belongs to a communicator. Closing takes the raw handle of the communicator, as the resource
// holds it: destroying a communicator closes its resources first.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "buffer.h"
#include "communicator.h"
#include "communicators.h"
#include "errors.h"
#include "group.h"
#include "library.h"
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
  run(communicator,
      [&] { return function(communicator.handle, buffer.data(), buffer.bytes(), &handle); });
  return nb::make_tuple(reinterpret_cast<uintptr_t>(handle), buffer.bytes());
}

size_t register_window(nb::handle self, nb::handle object, int flags, WindowPlace& place) {
  auto& communicator = nb::cast<Communicator&>(self);
  Buffer buffer("buffer", object, false);
  const auto& function = library().CommWindowRegister.loaded();
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
  nb::class_<ncclDevComm_t>(module, "DevComm")
      .def("__init__", [](ncclDevComm_t* self) { new (self) ncclDevComm_t{}; })
      .def_prop_ro("ptr",
                   [](const ncclDevComm_t& self) { return reinterpret_cast<uintptr_t>(&self); });

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
    run(std::span<ncclComm_t* const>(),
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
  module.def("create_pre_mul_sum", &create_pre_mul_sum);
  module.def("destroy_operator", [](uintptr_t comm, int op) {
    check(library().RedOpDestroy(static_cast<ncclRedOp_t>(op), as_communicator(comm)));
  });
  module.def(
      "create_dev_comm",
      [](Communicator& self, std::optional<ncclDevCommRequirements_t*> requirements,
         ncclDevComm_t& made) {
        const ncclDevCommRequirements_t none = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        const ncclDevCommRequirements_t* wanted =
            requirements && *requirements != nullptr ? *requirements : &none;
        const auto& function = library().DevCommCreate.loaded();
        run(self, [&] { return function(self.handle, wanted, &made); });
      },
      nb::arg(), nb::arg().none(), nb::arg());
  module.def("destroy_dev_comm", [](uintptr_t comm, const ncclDevComm_t& made) {
    check(library().DevCommDestroy(as_communicator(comm), &made));
  });
}

}  // namespace niccolite::python
