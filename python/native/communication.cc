#include "communication.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "buffer.h"
#include "communicator.h"
#include "config.h"
#include "devices.h"
#include "errors.h"
#include "group.h"
#include "library.h"
#include "stream.h"
#include "waiting.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

// One call: its communicator, its stream and its buffers.
class Call {
 public:
  /// `name` is the method's, for errors.
  Call(nb::handle communicator, const char* name, nb::handle stream,
       int peer = Communicator::kAllPeers)
      : owner_(communicator), communicator_(nb::cast<Communicator&>(communicator)) {
    communicator_.require(name);
    communicator_.enters(name, peer);
    communicator_.ask_rank();
    communicator_.ask_nranks();
    device_ = communicator_.ask_device();
    stream_ = stream_handle(stream);
    is_awaited_ = stream.is_none() && devices().is_virtual();
  }

  bool is_root(int root) { return root == communicator_.ask_rank(); }
  size_t nranks() { return static_cast<size_t>(communicator_.ask_nranks()); }

  const Buffer& reads(const char* name, nb::handle object) {
    return use(buffers_[0], name, object, false);
  }
  const Buffer& writes(const char* name, nb::handle object) {
    return use(buffers_[1], name, object, true);
  }

  /// `queue` takes the handle and the stream.
  template <typename Function, typename... Arguments>
  void run(const Function& function, Arguments... arguments) {
    const auto& queue = function.loaded();
    const ncclComm_t handle = communicator_.handle;
    python::run(communicator_, [&] { return queue(arguments..., handle, cuda_stream()); });
    finish();
  }
  /// Calls `configured` where `config` is not None, else `function`.
  template <typename Function, typename Configured, typename... Arguments>
  void run_collective(nb::handle config, const Function& function, const Configured& configured,
                      Arguments... arguments) {
    if (config.is_none()) [[likely]]
      return run(function, arguments...);
    const auto& queue = configured.loaded();
    const ncclComm_t handle = communicator_.handle;
    const ncclCollConfig_t* settings = &nb::cast<const CollConfig&>(config).values;
    python::run(communicator_,
                [&] { return queue(arguments..., handle, cuda_stream(), settings); });
    finish();
  }

 private:
  cudaStream_t cuda_stream() const {
    return reinterpret_cast<cudaStream_t>(stream_);  // NOLINT(performance-no-int-to-ptr)
  }

  const Buffer& use(Buffer& buffer, const char* name, nb::handle object, bool written) {
    buffer = Buffer(name, object, written);
    buffer.place_on(device_, communicator_.in_flight.newest());
    return buffer;
  }

  void finish() {
    if (Group& group = Group::current(); group.is_open()) {
      group.add({.owner = nb::borrow(owner_),
                 .communicator = &communicator_,
                 .buffers = std::move(buffers_),
                 .stream = stream_,
                 .is_awaited = is_awaited_});
      return;
    }
    if (!is_awaited_) {
      communicator_.in_flight.keep(buffers_, stream_, communicator_.is_settled());
      return;
    }
    try {
      if (communicator_.works_aside) wait_settled(communicator_);
      Communicator* const alone[] = {&communicator_};
      wait_finished(communicator_, stream_, alone);
    } catch (...) {  // interrupted, or the communicator has failed: the operation may go on
      for (Buffer& buffer : buffers_) communicator_.in_flight.keep_cut_off(std::move(buffer));
      throw;
    }
  }

  const nb::handle owner_;
  Communicator& communicator_;
  int device_ = 0;
  Stream stream_ = 0;
  bool is_awaited_ = false;
  std::array<Buffer, 2> buffers_;  // read, written
};

void require_same_type(const Buffer& send, const Buffer& receive) {
  if (send.type() != receive.type()) [[unlikely]]
    throw_invalid(std::string("Dtype mismatch: ") + send.name() + " has dtype " +
                  name_of(send.type()) + ", " + receive.name() + " has dtype " +
                  name_of(receive.type()));
}

[[noreturn]] void throw_count(const std::string& text) {
  throw_invalid("Buffer count mismatch: " + text);
}

std::string elements(const Buffer& buffer) {
  return std::string(buffer.name()) + " has " + std::to_string(buffer.count()) + " elements";
}

void require_count(const Buffer& buffer, size_t wanted, const char* why) {
  if (buffer.count() < wanted) [[unlikely]]
    throw_count(elements(buffer) + ", at least " + std::to_string(wanted) + " are needed (" + why +
                ")");
}

// A rank's share of a buffer that has a block for each rank; a remainder is not used.
size_t block_of(const Buffer& buffer, size_t nranks) {
  const size_t count = buffer.count() / nranks;
  if (count == 0) [[unlikely]]
    throw_count(elements(buffer) + ", at least one for each of " + std::to_string(nranks) +
                " ranks is needed");
  return count;
}

// The stable ABI has no tp_name.
std::string name_of_type(nb::handle value) {
  return nb::cast<std::string>(value.type().attr("__name__"));
}

// TypeError: `value`, the argument `name`, is no integer.
int as_rank(const char* name, nb::handle value) {
  const nb::object index =
      PyLong_Check(value.ptr()) != 0 ? nb::borrow(value) : nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be the number of a rank, not of type %s", name,
                 name_of_type(value).c_str());
    throw nb::python_error();
  }
  int overflow = 0;
  const long rank = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || !std::in_range<int>(rank))
    throw_invalid(std::string(name) + " is " + nb::cast<std::string>(nb::str(index)) +
                  ", which is no rank");
  return static_cast<int>(rank);
}

ncclRedOp_t operation(nb::handle op) {
  if (PyLong_Check(op.ptr()) != 0) [[likely]]
    return static_cast<ncclRedOp_t>(PyLong_AsLong(op.ptr()));
  if (PyNumber_Check(op.ptr()) == 0)
    throw_invalid(
        std::string("op must be an NcclRedOp, such as nccl.core.SUM, or a CustomRedOp, ") +
        "not of type " + name_of_type(op));
  const nb::object number = nb::steal(PyNumber_Long(op.ptr()));
  if (!number.is_valid()) throw nb::python_error();  // a closed operator
  return static_cast<ncclRedOp_t>(nb::cast<int>(number));
}

// ---- collectives

void all_reduce(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle op,
                nb::handle stream, nb::handle config) {
  Call call(comm, "allreduce", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  require_same_type(send, receive);
  require_count(receive, send.count(), "as many as in sendbuf");
  call.run_collective(config, library().AllReduce, library().AllReduceConfig, send.data(),
                      receive.data(), send.count(), send.type(), operation(op));
}

void reduce(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle op,
            nb::handle root_number, nb::handle stream, nb::handle config) {
  const int root = as_rank("root", root_number);
  Call call(comm, "reduce", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  void* target = nullptr;
  if (call.is_root(root)) {
    const Buffer& receive = call.writes("recvbuf", recvbuf);
    require_same_type(send, receive);
    require_count(receive, send.count(), "as many as in sendbuf");
    target = receive.data();
  }
  call.run_collective(config, library().Reduce, library().ReduceConfig, send.data(), target,
                      send.count(), send.type(), operation(op), root);
}

void broadcast(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle root_number,
               nb::handle stream, nb::handle config) {
  const int root = as_rank("root", root_number);
  Call call(comm, "broadcast", stream);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  const void* source = nullptr;
  if (call.is_root(root)) {
    const Buffer& send = call.reads("sendbuf", sendbuf);
    require_same_type(send, receive);
    if (send.count() != receive.count())
      throw_count(elements(send) + ", " + elements(receive) + ": they must be equal");
    source = send.data();
  }
  call.run_collective(config, library().Broadcast, library().BroadcastConfig, source,
                      receive.data(), receive.count(), receive.type(), root);
}

void all_gather(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle stream,
                nb::handle config) {
  Call call(comm, "allgather", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  require_same_type(send, receive);
  require_count(receive, send.count() * call.nranks(), "sendbuf's from each rank");
  call.run_collective(config, library().AllGather, library().AllGatherConfig, send.data(),
                      receive.data(), send.count(), send.type());
}

void gather(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle root_number,
            nb::handle stream, nb::handle config) {
  const int root = as_rank("root", root_number);
  Call call(comm, "gather", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  void* target = nullptr;
  if (call.is_root(root)) {
    const Buffer& receive = call.writes("recvbuf", recvbuf);
    require_same_type(send, receive);
    require_count(receive, send.count() * call.nranks(), "sendbuf's from each rank");
    target = receive.data();
  }
  call.run_collective(config, library().Gather, library().GatherConfig, send.data(), target,
                      send.count(), send.type(), root);
}

void scatter(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle root_number,
             nb::handle stream, nb::handle config) {
  const int root = as_rank("root", root_number);
  Call call(comm, "scatter", stream);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  const void* source = nullptr;
  if (call.is_root(root)) {
    const Buffer& send = call.reads("sendbuf", sendbuf);
    require_same_type(send, receive);
    if (const size_t block = block_of(send, call.nranks()); block != receive.count())
      throw_count(elements(send) + ", " + std::to_string(block) + " for each rank, but " +
                  elements(receive));
    source = send.data();
  }
  call.run_collective(config, library().Scatter, library().ScatterConfig, source, receive.data(),
                      receive.count(), receive.type(), root);
}

void reduce_scatter(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle op,
                    nb::handle stream, nb::handle config) {
  Call call(comm, "reduce_scatter", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  require_same_type(send, receive);
  const size_t block = block_of(send, call.nranks());
  require_count(receive, block, "sendbuf's divided by the ranks");
  call.run_collective(config, library().ReduceScatter, library().ReduceScatterConfig, send.data(),
                      receive.data(), block, send.type(), operation(op));
}

void all_to_all(nb::handle comm, nb::handle sendbuf, nb::handle recvbuf, nb::handle stream,
                nb::handle config) {
  Call call(comm, "alltoall", stream);
  const Buffer& send = call.reads("sendbuf", sendbuf);
  const Buffer& receive = call.writes("recvbuf", recvbuf);
  require_same_type(send, receive);
  const size_t block = block_of(send, call.nranks());
  require_count(receive, send.count(), "as many as in sendbuf");
  call.run_collective(config, library().AlltoAll, library().AlltoAllConfig, send.data(),
                      receive.data(), block, send.type());
}

// ---- messages and signals

void send(nb::handle comm, nb::handle sendbuf, nb::handle peer_number, nb::handle stream) {
  const int peer = as_rank("peer", peer_number);
  Call call(comm, "send", stream, peer);
  const Buffer& buffer = call.reads("sendbuf", sendbuf);
  call.run(library().Send, buffer.data(), buffer.count(), buffer.type(), peer);
}

void recv(nb::handle comm, nb::handle recvbuf, nb::handle peer_number, nb::handle stream) {
  const int peer = as_rank("peer", peer_number);
  Call call(comm, "recv", stream, peer);
  const Buffer& buffer = call.writes("recvbuf", recvbuf);
  call.run(library().Recv, buffer.data(), buffer.count(), buffer.type(), peer);
}

void put_signal(nb::handle comm, nb::handle local_buffer, nb::handle peer_number, uintptr_t window,
                size_t offset, int signal, int context, unsigned flags, nb::handle stream) {
  const int peer = as_rank("peer", peer_number);
  Call call(comm, "put_signal", stream, peer);
  const Buffer& buffer = call.reads("local_buffer", local_buffer);
  call.run(library().PutSignal, buffer.data(), buffer.count(), buffer.type(), peer,
           reinterpret_cast<ncclWindow_t>(window),  // NOLINT(performance-no-int-to-ptr)
           offset * size_of(buffer.type()), signal, context, flags);
}

void signal(nb::handle comm, nb::handle peer_number, int signal, int context, unsigned flags,
            nb::handle stream) {
  const int peer = as_rank("peer", peer_number);
  Call call(comm, "signal", stream, peer);
  call.run(library().Signal, peer, signal, context, flags);
}

using SignalDescription = std::array<int, 4>;  // operations, peer, signal, context

void wait_signal(nb::handle comm, const std::vector<SignalDescription>& descriptions,
                 nb::handle stream) {
  // One wait names its peer in an interrupt's text; of several waits any may be open.
  const int peer = descriptions.size() == 1 ? descriptions[0][1] : Communicator::kAllPeers;
  Call call(comm, "wait_signal", stream, peer);
  std::vector<ncclWaitSignalDesc_t> waits;
  for (const auto& [count, peer, signal, context] : descriptions)
    waits.push_back({.opCnt = count, .peer = peer, .sigIdx = signal, .ctx = context});
  call.run(library().WaitSignal, static_cast<int>(waits.size()), waits.data());
}

}  // namespace

uintptr_t stream_handle(nb::handle stream) {
  if (stream.is_none()) return 0;
  if (PyLong_Check(stream.ptr()) != 0) {
    const auto handle = PyLong_AsUnsignedLongLong(stream.ptr());
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return handle;
  }
  static auto* const owned = reinterpret_cast<PyTypeObject*>(nb::type<OwnedStream>().ptr());
  if (PyObject_TypeCheck(stream.ptr(), owned) != 0) {
    const Stream handle = nb::inst_ptr<OwnedStream>(stream)->handle();
    if (handle == 0) throw_runtime_error("the stream has been closed");
    return handle;
  }
  static PyObject* const protocol = PyUnicode_InternFromString("__cuda_stream__");
  const nb::object method = nb::steal(PyObject_GetAttr(stream.ptr(), protocol));
  if (!method.is_valid()) {
    PyErr_Clear();
    throw_invalid(
        "stream must be None, an integer (a cudaStream_t), or an object with __cuda_stream__");
  }
  // (version, handle); some have it as an attribute.
  const nb::object pair = PyCallable_Check(method.ptr()) != 0 ? method() : method;
  return nb::cast<uintptr_t>(pair[1]);
}

void bind_communication(nb::module_& module) {
  // The calls check their arguments themselves, None included, because their errors name them.
#define NICCOLITE_ANY nb::arg().none()
  module.def("all_reduce", &all_reduce, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("reduce", &reduce, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("broadcast", &broadcast, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("all_gather", &all_gather, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY);
  module.def("gather", &gather, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("scatter", &scatter, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("reduce_scatter", &reduce_scatter, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("all_to_all", &all_to_all, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY,
             NICCOLITE_ANY);
  module.def("send", &send, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("recv", &recv, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY);
  module.def("put_signal", &put_signal, NICCOLITE_ANY, NICCOLITE_ANY, NICCOLITE_ANY, nb::arg(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), NICCOLITE_ANY);
  module.def("signal", &signal, NICCOLITE_ANY, NICCOLITE_ANY, nb::arg(), nb::arg(), nb::arg(),
             NICCOLITE_ANY);
  module.def("wait_signal", &wait_signal, NICCOLITE_ANY, nb::arg(), NICCOLITE_ANY);
#undef NICCOLITE_ANY
}

}  // namespace niccolite::python
