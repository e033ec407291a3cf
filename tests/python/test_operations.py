"""What the operations compute, on which buffers, and what they refuse."""

import ctypes
import os
import re
import subprocess
import sys
import threading

import nccl.core as nccl
import numpy as np
import pytest
from conftest import RANKS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nccl import virtual
from nccl.bindings.nccl import NCCLError
from nccl.core import Communicator, NcclInvalid

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def _values(rank, count, dtype="float32"):
    """Small whole numbers, which depend on the rank and on the index: sums of them are exact."""
    return ((np.arange(count) * 3 + rank * 5) % 7 + 1).astype(dtype)


def _everything(comm, count, dtype):
    """Each operation once; returns what is not as NumPy has it."""
    n, rank, root = comm.nranks, comm.rank, comm.nranks - 1
    wrong = []

    def expect(name, got, wanted):
        if not np.array_equal(got, wanted):
            wrong.append((name, rank, got, wanted))

    mine = _values(rank, count, dtype)
    all_of = [_values(other, count, dtype) for other in range(n)]
    wide = [_values(other, count * n, dtype) for other in range(n)]
    part = slice(rank * count, (rank + 1) * count)

    out = np.zeros(count, dtype)
    for op, combine in [(nccl.SUM, np.add), (nccl.MAX, np.maximum), (nccl.MIN, np.minimum)]:
        comm.allreduce(mine, out, op)
        expect(f"allreduce {op.name}", out, combine.reduce(all_of, dtype=dtype))
    in_place = mine.copy()
    comm.allreduce(in_place, in_place, nccl.SUM)
    expect("allreduce in place", in_place, np.add.reduce(all_of, dtype=dtype))

    out = np.zeros(count, dtype)
    comm.reduce(mine, out if rank == root else None, nccl.SUM, root)
    if rank == root:
        expect("reduce", out, np.add.reduce(all_of, dtype=dtype))
    comm.broadcast(mine if rank == root else None, out, root)
    expect("broadcast", out, all_of[root])

    gathered = np.zeros((n, count), dtype)
    comm.allgather(mine, gathered)
    expect("allgather", gathered, np.stack(all_of))
    gathered[:] = 0
    comm.gather(mine, gathered if rank == 0 else None, 0)
    if rank == 0:
        expect("gather", gathered, np.stack(all_of))

    comm.scatter(wide[root] if rank == root else None, out, root)
    expect("scatter", out, wide[root][part])
    comm.reduce_scatter(wide[rank], out, nccl.SUM)
    expect("reduce_scatter", out, np.add.reduce(wide, dtype=dtype)[part])
    swapped = np.zeros(count * n, dtype)
    comm.alltoall(wide[rank], swapped)
    expect("alltoall", swapped, np.concatenate([one[part] for one in wide]))

    with nccl.group():
        comm.send(mine, (rank + 1) % n)
        comm.recv(out, (rank - 1) % n)
    expect("send and recv", out, all_of[rank - 1])
    # Ranks leave when all are connected: who leaves before a peer has connected to it fails that peer.
    comm.allreduce(mine, mine.copy(), nccl.SUM)
    return wrong


@pytest.mark.parametrize("count", [1, 1000])
def test_every_operation_is_numpy_s(on_ranks, count):
    assert on_ranks(_everything, count, "float32") == [[]] * RANKS


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type(dtype):
    assert virtual.run(_everything, 3, args=(17, dtype)) == [[]] * 3


def _signals(comm):
    n, rank = comm.nranks, comm.rank
    memory = nccl.mem_alloc(64 * (n + 1))  # a block for each rank, and what is put
    window = comm.register_window(memory, nccl.WindowFlag.COLL_SYMMETRIC)
    blocks = np.frombuffer(memory, np.float32).reshape(n + 1, 16)
    blocks[n] = rank + 1
    following, previous = (rank + 1) % n, (rank - 1) % n
    comm.put_signal(blocks[n], following, window, 16 * rank)  # elements of float32
    comm.wait_signal([nccl.WaitSignalDesc(previous)])
    comm.signal(following)
    comm.wait_signal(nccl.WaitSignalDesc(previous))
    answer = bool((blocks[previous] == previous + 1).all())
    comm.finalize()
    window.close()
    return answer


def _configured(comm, config):
    """Each collective once, with settings of its own; is all right?"""
    n, rank = comm.nranks, comm.rank
    mine, wide = _values(rank, 50), _values(rank, 50 * n)
    total = sum(_values(other, 50) for other in range(n))
    totals = sum(_values(other, 50 * n) for other in range(n))
    gathered = np.concatenate([_values(other, 50) for other in range(n)])
    part = slice(rank * 50, rank * 50 + 50)
    right = []
    one, many = np.zeros(50, np.float32), np.zeros(50 * n, np.float32)
    comm.allreduce(mine, one, nccl.SUM, config=config)
    right.append((one == total).all())
    comm.reduce(mine, one, nccl.SUM, 0, config=config)
    right.append(rank != 0 or (one == total).all())
    comm.broadcast(mine, one, 1, config=config)
    right.append((one == _values(1, 50)).all())
    comm.allgather(mine, many, config=config)
    right.append((many == gathered).all())
    comm.gather(mine, many, 0, config=config)
    right.append(rank != 0 or (many == gathered).all())
    comm.scatter(wide, one, 0, config=config)
    right.append((one == _values(0, 50 * n)[part]).all())
    comm.reduce_scatter(wide, one, nccl.SUM, config=config)
    right.append((one == totals[part]).all())
    comm.alltoall(wide, many, config=config)
    right.append((many == np.concatenate([_values(other, 50 * n)[part] for other in range(n)])).all())
    return all(right)


def test_calls_have_settings_of_their_own(on_ranks):
    options = (nccl.VendorOption(1, 2, int_value=3), nccl.VendorOption(1, 3, str_value="x"))
    assert all(on_ranks(_configured, nccl.NCCLCollConfig(max_ctas=1, user_profiler_tag=2**63, vendor_options=options)))


def test_settings_of_calls_reach_the_library():
    program = ("import os, numpy, nccl.core as nccl\n"
               "comms = nccl.Communicator.init_all(2)\n"
               "with nccl.group():\n"
               "    for comm in comms:\n"
               "        x = numpy.ones(4, numpy.float32)\n"
               "        comm.allreduce(x, x, nccl.SUM, config=nccl.NCCLCollConfig(max_ctas=2, alg_selection='RING_LL'))\n")
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL"},
                          capture_output=True, text=True, check=True)
    assert re.search("ncclAllReduce: config [0-9a-f]+ is maxCTAs 2, algSelection RING_LL", done.stdout + done.stderr)


def test_settings_of_calls_that_cannot_be_are_refused(comm):
    x = np.ones(4)
    with pytest.raises(NCCLError, match="NOTHING"):
        comm.allreduce(x, x, nccl.SUM, config=nccl.NCCLCollConfig(alg_selection="NOTHING"))
    config = nccl.NCCLCollConfig()
    config.alg_selection = "NOTHING"  # read by each call
    with pytest.raises(NCCLError, match="NOTHING"):
        comm.allreduce(x, x, nccl.SUM, config=config)
    with pytest.raises(NcclInvalid, match="event is of type str"):
        comm.allreduce(x, x, nccl.SUM, config=nccl.NCCLCollConfig(launch_completion_event="an event"))
    for given in [{}, {"int_value": 1, "str_value": "x"}]:
        with pytest.raises(NcclInvalid, match="one of int_value, str_value and raw_value"):
            nccl.VendorOption(1, 1, **given)
    twice = nccl.VendorOption(1, 1, int_value=1)
    for options, message in [([twice, twice], "option 1 of vendor 1 twice"), (["x"], "holds a str"), ("x", "not str")]:
        with pytest.raises(NcclInvalid, match=message):
            nccl.NCCLCollConfig(vendor_options=options)


class _Option(ctypes.Structure):
    """ncclConfigExt_t"""
_Option._fields_ = [("next", ctypes.POINTER(_Option)), ("key", ctypes.c_int * 2), ("value", ctypes.c_void_p)]


def test_options_of_vendors_are_a_list():
    given = [nccl.VendorOption(1, 2, int_value=3), nccl.VendorOption(1, 3, str_value="text"), nccl.VendorOption(9, 2, raw_value=2**40)]
    low = nccl.NCCLCollConfig(vendor_options=given, launch_completion_event=77)._lower()
    first = ctypes.c_void_p.from_address(low.ptr + 16).value
    assert low.launch_completion_event == 77
    found, one = [], ctypes.cast(first, ctypes.POINTER(_Option))
    while one:
        found.append((*one.contents.key, one.contents.value))
        one = one.contents.next
    assert found[0] == (1, 2, 3) and found[2] == (9, 2, 2**40)
    assert found[1][:2] == (1, 3) and ctypes.string_at(found[1][2]) == b"text"


def test_the_event_of_a_launch_is_recorded():
    import niccolite

    cuda = ctypes.CDLL(os.path.join(niccolite.get_virtual_cuda().split(os.pathsep)[0], "libcudart.so.13"))
    event, without_timing, not_ready = ctypes.c_void_p(), 2, 600
    assert cuda.cudaEventCreateWithFlags(ctypes.byref(event), without_timing) == 0
    comms = Communicator.init_all(2)
    streams = [virtual.stream(device) for device in range(2)]
    first, second = ([np.ones(1000) for _ in comms] for _ in range(2))
    config = nccl.NCCLCollConfig(launch_completion_event=event.value)
    comms[0].allreduce(first[0], first[0], nccl.SUM, stream=streams[0])
    comms[0].allreduce(second[0], second[0], nccl.SUM, stream=streams[0], config=config)
    assert cuda.cudaEventQuery(event) == not_ready, "the first operation waits for the other rank"
    comms[1].allreduce(first[1], first[1], nccl.SUM, stream=streams[1])
    assert cuda.cudaEventSynchronize(event) == 0
    comms[1].allreduce(second[1], second[1], nccl.SUM, stream=streams[1])
    for stream in streams:
        stream.synchronize()
    assert (second[0] == 2).all()
    for comm, stream in zip(comms, streams):
        comm.destroy()
        stream.close()
    assert cuda.cudaEventDestroy(event) == 0


def test_puts_and_signals(on_ranks):
    assert on_ranks(_signals) == [True] * RANKS


class _Dlpack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class _ArrayInterface:
    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self._array = array


# ---- properties, on communicators of two ranks that live as long as the module


@pytest.fixture(scope="module")
def pair():
    comms = Communicator.init_all(2)
    yield comms
    for comm in comms:
        comm.abort()


@pytest.fixture(scope="module")
def alone():
    """Of one rank: what should have been refused does not wait for anybody."""
    [made] = Communicator.init_all(1)
    yield made
    made.abort()


def _all_reduce(pair, sends, receives, op=nccl.SUM):
    with nccl.group():
        for comm, send, receive in zip(pair, sends, receives):
            comm.allreduce(send, receive, op)


shapes = st.lists(st.integers(0, 5), min_size=0, max_size=4).map(tuple)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes, dtype=st.sampled_from(TYPES), offset=st.integers(0, 9), fortran=st.booleans(),
       seed=st.integers(0, 2**32 - 1))
def test_shapes_types_and_offsets(pair, shape, dtype, offset, fortran, seed):
    random = np.random.default_rng(seed)

    def array():
        # An array that begins anywhere in its memory, in either order.
        bytes_ = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 16, np.uint8)
        flat = np.frombuffer(bytes_, dtype, int(np.prod(shape)),
                             offset * np.dtype(dtype).itemsize if offset * np.dtype(dtype).itemsize <= 16 else 0)
        return flat.reshape(shape, order="F" if fortran else "C")

    sends, receives = [array(), array()], [array(), array()]
    for send in sends:
        send[...] = random.integers(0, 20, shape)
    _all_reduce(pair, sends, receives)
    for receive in receives:
        assert np.array_equal(receive, sends[0] + sends[1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, 5), step=st.integers(-3, 3).filter(bool), count=st.integers(2, 6))
def test_strides_are_taken_or_refused_never_misread(pair, start, step, count):
    whole = np.arange(64, dtype=np.int32)
    view = whole[start : start + abs(step) * count : abs(step)][:: 1 if step > 0 else -1]
    if step == 1:
        out = [np.zeros(len(view), np.int32) for _ in range(2)]
        _all_reduce(pair, [view, view], out)
        assert np.array_equal(out[0], 2 * view)
    else:
        with pytest.raises(NcclInvalid, match="sendbuf is not contiguous"):
            pair[0].allreduce(view, np.zeros(len(view), np.int32), nccl.SUM)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_orders_of_the_indices_and_steps(pair, alone, shape, data):
    # A view with permuted indices is dense; steps and turned axes leave gaps or go backwards, unless they do not matter.
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, -1])] * len(shape)))
    kind = data.draw(st.sampled_from([np.asarray, memoryview, _Dlpack, _ArrayInterface]))

    def view(array):
        return array.transpose(order)[tuple(slice(None, None, step) for step in steps)]

    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    send, out = view(whole), [view(np.zeros_like(whole)) for _ in range(2)]
    strides = [stride for stride, extent in zip(send.strides, send.shape) if extent > 1]
    last = sum((extent - 1) * stride for stride, extent in zip(send.strides, send.shape))
    if all(stride > 0 for stride in strides) and last // send.itemsize + 1 == send.size:
        _all_reduce(pair, [kind(send)] * 2, out)
        assert np.array_equal(out[0], 2 * send) and np.array_equal(out[1], 2 * send)
    else:
        with pytest.raises(NcclInvalid, match="sendbuf is not contiguous"):
            alone.allreduce(kind(send), np.zeros(send.shape, np.int32), nccl.SUM)


def test_parts_of_one_array_may_be_used_at_the_same_time(pair):
    whole = np.arange(30, dtype=np.float32)
    out = np.zeros(30, np.float32)
    with nccl.group():
        for part in [slice(0, 20), slice(10, 30), slice(5, 25)]:
            for comm in pair:
                comm.allreduce(whole[part], np.zeros(20, np.float32), nccl.SUM)
        for comm, half in zip(pair, [slice(0, 15), slice(15, 30)]):
            comm.allreduce(whole[:15], out[half], nccl.SUM)
    assert np.array_equal(out[:15], 2 * whole[:15]) and np.array_equal(out[15:], 2 * whole[:15])


# ---- kinds of buffers


@pytest.mark.parametrize("kind", [lambda a: a, memoryview, _Dlpack, _ArrayInterface, virtual.array])
def test_buffers_of_all_kinds(comm, kind):
    source = np.arange(12, dtype=np.float32)
    target = np.zeros(12, np.float32)
    comm.allreduce(kind(source), target, nccl.SUM)
    assert np.array_equal(source, target)


def test_bytes_and_memory_of_the_device(comm):
    memory = nccl.mem_alloc(8)
    target = bytearray(8)
    comm.allreduce(np.arange(8, dtype=np.int8), memory, nccl.SUM)
    assert bytes(memory) == bytes(range(8)) and len(memory) == memory.size == 8
    comm.broadcast(b"abcdefgh", target, 0)
    assert target == b"abcdefgh"
    assert np.from_dlpack(memory).tolist() == list(range(8))
    memory.close()
    memory.close()
    assert repr(memory) == "<Buffer: closed>"
    with pytest.raises(NcclInvalid, match="freed"):
        comm.broadcast(memory, target, 0)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats(comm, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = np.arange(5).astype(getattr(ml_dtypes, name))
    target = np.zeros_like(source)
    comm.allreduce(source, target, nccl.SUM)
    assert np.array_equal(source, target)


TENSORS = """
import sys, types
import numpy as np
from nccl import virtual
torch = types.ModuleType("torch")
sys.modules["torch"] = torch
for name in "int8 uint8 bool int16 int32 int64 float16 float32 float64 bfloat16".split():
    setattr(torch, name, name)

class Device:
    index = None

class Tensor:
    device = Device()

    def __init__(self, array, dtype=None):
        self.array, self.dtype, self.shape = array, dtype or array.dtype.name, array.shape

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def data_ptr(self): return self.array.ctypes.data
    def numel(self): return self.array.size
    def get_device(self): return -1
    def is_contiguous(self): return self.array.flags.c_contiguous

Tensor.__module__ = "torch"
torch.Tensor = Tensor

import nccl.core as nccl

def main(comm):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    sums = Tensor(np.zeros((3, 4), np.float32))
    comm.allreduce(Tensor(values), sums, nccl.SUM)
    assert np.array_equal(sums.array, 2 * values)
    turned = Tensor(np.zeros((3, 4), np.float32).T)
    comm.allreduce(Tensor(values.T), turned, nccl.SUM)
    assert np.array_equal(turned.array, 2 * values.T)
    comm.broadcast(Tensor(values.view(np.uint16), "bfloat16"), Tensor(np.zeros(24, np.uint16), "bfloat16"), 0)
    for wrong, why in [(Tensor(values[:, 1]), "recvbuf is not contiguous"),
                       (Tensor(np.zeros(12, np.int16)), "tensors of int16 are not communicated"),
                       (Tensor(np.zeros(11, np.float32)), "recvbuf has 11 elements"),
                       (Tensor(np.zeros(12, np.float64)), "recvbuf has dtype float64")]:
        try:
            comm.allreduce(values, wrong, nccl.SUM)
        except nccl.NcclInvalid as error:
            assert why in str(error), error
        else:
            raise AssertionError(why)

virtual.run(main, ranks=2)

cupy = types.ModuleType("cupy")
sys.modules["cupy"] = cupy

class Memory:
    device_id = 0

class ndarray:
    def __init__(self, array):
        self.array, self.data = array, Memory()
        self.dtype, self.size, self._c_contiguous = array.dtype, array.size, array.flags.c_contiguous
        self.data.ptr = array.ctypes.data

ndarray.__module__ = "cupy"
cupy.ndarray = ndarray
[comm] = nccl.Communicator.init_all(1)
for dtype in [np.int8, np.uint64, np.float16, np.float32]:
    source, target = virtual.array(np.arange(7), dtype, 0), virtual.array(np.zeros(7), dtype, 0)
    comm.allreduce(ndarray(source), ndarray(target), nccl.SUM)
    assert np.array_equal(source, target)
Memory.device_id = 1
try:
    comm.allreduce(ndarray(source), ndarray(target), nccl.SUM)
except nccl.NcclInvalid as error:
    assert "sendbuf is on device 1" in str(error)
print("fine")
"""


def test_arrays_of_frameworks_are_asked_what_they_are():
    # PyTorch and CuPy themselves run on GPUs, in scripts/gpu-check --python; here classes that have what is asked.
    done = subprocess.run([sys.executable, "-c", TENSORS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_resolved_buffers():
    from nccl.core.buffer import NcclBuffer

    array = virtual.array(np.ones((2, 3), np.float16), device=3)
    found = NcclBuffer(array)
    assert (found.count, found.dtype, found.device_id) == (6, nccl.FLOAT16, 3)
    assert found.ptr == array.ctypes.data
    assert NcclBuffer(nccl.mem_alloc(5)).dtype is nccl.INT8
    assert NcclBuffer(np.float32(1).reshape(())).count == 1
    assert NcclBuffer(np.zeros(3)).device_id == -1


@pytest.mark.parametrize(("call", "message"), [
    (lambda c, f: c.allreduce(f(4), f(3), nccl.SUM), "Buffer count mismatch: recvbuf has 3"),
    (lambda c, f: c.allreduce(f(4), f(4, "f8"), nccl.SUM), "Dtype mismatch: sendbuf has dtype float32"),
    (lambda c, f: c.reduce(f(4), f(3), nccl.SUM, 0), "Buffer count mismatch"),
    (lambda c, f: c.broadcast(f(4), f(3), 0), "Buffer count mismatch"),
    (lambda c, f: c.broadcast(f(4, "i4"), f(4), 0), "Dtype mismatch"),
    (lambda c, f: c.allgather(f(4), f(3)), "Buffer count mismatch"),
    (lambda c, f: c.gather(f(4), f(3), 0), "Buffer count mismatch"),
    (lambda c, f: c.scatter(f(4), f(3), 0), "Buffer count mismatch: sendbuf has 4"),
    (lambda c, f: c.scatter(f(0), f(0), 0), "Buffer count mismatch"),
    (lambda c, f: c.reduce_scatter(f(4), f(3), nccl.SUM), "Buffer count mismatch"),
    (lambda c, f: c.reduce_scatter(f(0), f(0), nccl.SUM), "Buffer count mismatch"),
    (lambda c, f: c.alltoall(f(4), f(3)), "Buffer count mismatch"),
    (lambda c, f: c.alltoall(f(0), f(0)), "Buffer count mismatch"),
    (lambda c, f: c.allreduce(f(4, "i2"), f(4, "i2"), nccl.SUM), "sendbuf has dtype int16, which is not communicated"),
    (lambda c, f: c.allreduce(f(4, "?"), f(4, "?"), nccl.SUM), "sendbuf has dtype bool"),
    (lambda c, f: c.allreduce(f(4, ">f4"), f(4), nccl.SUM), "sendbuf has dtype >f4"),
    (lambda c, f: c.allreduce([1.0], f(1), nccl.SUM), "sendbuf is of type list"),
    (lambda c, f: c.allreduce(None, f(1), nccl.SUM), "sendbuf is None"),
    (lambda c, f: c.broadcast(f(3, "B"), b"abc", 0), "recvbuf is read-only"),
    (lambda c, f: c.allreduce(f((4, 4))[:, 1], f(4), nccl.SUM), "sendbuf is not contiguous"),
    (lambda c, f: c.send(f(8)[::2], 0), "sendbuf is not contiguous"),
    (lambda c, f: c.allreduce(f(4), virtual.array(f(4), device=1), nccl.SUM), "recvbuf is on device 1"),
    (lambda c, f: c.allreduce(f(4), f(4), nccl.SUM, stream="s"), "stream must be"),
    (lambda c, f: c.allreduce(f(4), f(4), "sum"), "op must be"),
])
def test_refusals_name_the_argument(comm, call, message):
    with pytest.raises(NcclInvalid) as caught:
        call(comm, lambda shape, dtype="f4": np.zeros(shape, dtype))
    assert message in str(caught.value)


def test_buffers_of_others_are_not_looked_at():
    def main(comm):
        x = np.zeros(comm.nranks, np.float32)
        comm.reduce(x, None if comm.rank else x.copy(), nccl.SUM, 0)
        comm.broadcast("nothing" if comm.rank else x, x.copy(), 0)
        comm.scatter(None if comm.rank else x, x[:1].copy(), 0)
        comm.gather(x[:1], None if comm.rank else x.copy(), 0)

    virtual.run(main, 2)


# ---- streams, and how long buffers live


class _Protocol:
    def __init__(self, stream):
        self._stream = stream

    def __cuda_stream__(self):
        return (0, self._stream.handle)


def test_streams_of_all_kinds(comm):
    x = np.arange(6.0)
    with virtual.stream(0) as stream:
        for form in [stream, stream.handle, _Protocol(stream)]:
            y = np.zeros(6)
            comm.allreduce(x, y, nccl.SUM, stream=form)
            stream.synchronize()
            assert np.array_equal(x, y)
    with pytest.raises(RuntimeError, match="closed"):
        comm.allreduce(x, x, nccl.SUM, stream=stream)


def test_buffers_live_as_long_as_operations_use_them():
    comms = Communicator.init_all(2)
    streams = [virtual.stream(i) for i in range(2)]
    source = bytearray(b"x" * 100)
    arrays = [np.full(1 << 18, 7.0), np.zeros(1 << 18)]
    references = [sys.getrefcount(array) for array in arrays]
    # Rank 0's operations wait for rank 1, which comes later; meanwhile nobody else holds them.
    comms[0].allreduce(arrays[0], arrays[1], nccl.SUM, stream=streams[0])
    comms[0].broadcast(source, np.zeros(100, np.uint8), 0, stream=streams[0])
    assert [sys.getrefcount(array) for array in arrays] > references
    with pytest.raises(BufferError):
        source.extend(b"moves the memory")
    for _ in range(8):
        comms[0].allreduce(np.full(1 << 18, 1.0), np.zeros(1 << 18), nccl.SUM, stream=streams[0])
    out = np.zeros(1 << 18)
    comms[1].allreduce(np.full(1 << 18, 1.0), out, nccl.SUM, stream=streams[1])
    comms[1].broadcast(b"", np.zeros(100, np.uint8), 0, stream=streams[1])
    for _ in range(8):
        comms[1].allreduce(np.full(1 << 18, 1.0), np.zeros(1 << 18), nccl.SUM, stream=streams[1])
    for stream in streams:
        stream.synchronize()
    assert (out == 8.0).all() and (arrays[1] == 8.0).all()
    for comm in comms:
        comm.abort()
    assert [sys.getrefcount(array) for array in arrays] == references
    source.extend(b"is free")


def test_memory_is_freed_after_its_last_user(comm):
    memory = nccl.mem_alloc(64)
    view = np.frombuffer(memory, np.int32)
    memory.close()
    view[:] = 5  # would end the process if the memory were gone
    assert memory.handle == 0
    comm.allreduce(view, view, nccl.SUM)
    assert (view == 5).all()


def test_threads_share_buffers_and_close_them():
    # Interpreters without a GIL run all of this at once.
    ranks, rounds = 4, 200
    source = np.arange(64, dtype=np.float32)
    memories = [[nccl.mem_alloc(256, rank) for rank in range(ranks)] for _ in range(rounds)]
    barrier = threading.Barrier(2 * ranks)

    def close(rank):
        barrier.wait()
        for memory in memories:
            memory[rank].close()
            repr(memory[rank])

    def main(comm):
        closer = threading.Thread(target=close, args=(comm.rank,))
        closer.start()
        barrier.wait()
        freed = 0
        for memory in memories:
            try:
                np.frombuffer(memory[comm.rank], np.float32)[:] = 1
            except BufferError:  # it has been freed
                freed += 1
            out = np.empty_like(source)
            comm.allreduce(source, out, nccl.SUM)
            assert np.array_equal(out, ranks * source)
        closer.join()
        return freed

    assert all(0 <= freed <= rounds for freed in virtual.run(main, ranks))


def test_many_operations_keep_few_buffers(comm):
    import weakref

    with virtual.stream(0) as stream:
        class Array(np.ndarray):
            pass

        dead = []
        for _ in range(300):
            array = np.zeros(16, np.float32).view(Array)
            comm.allreduce(array, array, nccl.SUM, stream=stream)
            dead.append(weakref.ref(array))
            stream.synchronize()
        del array
        assert sum(one() is not None for one in dead) <= 40


def test_devices_are_settled_once():
    assert len(virtual.devices()) == 8 and virtual.devices(3)[2] == 2
    with pytest.raises(RuntimeError, match="9 virtual GPUs are wanted"):
        virtual.devices(9)


def test_graphs_keep_their_buffers(comm):
    import ctypes
    import os
    import weakref

    import niccolite

    class Array(np.ndarray):
        pass

    runtime = ctypes.CDLL(os.path.join(niccolite.get_folder(), "lib", "vcuda", "libcudart.so.13"))
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    with virtual.stream(0) as stream:
        handle = ctypes.c_void_p(stream.handle)
        source, target = np.zeros(4).view(Array), np.zeros(4)
        comm.allreduce(source, target, nccl.SUM, stream=stream)  # connects outside of the graph
        stream.synchronize()
        source[:] = 3
        assert runtime.cudaStreamBeginCapture(handle, 1) == 0
        comm.allreduce(source, target, nccl.SUM, stream=stream)
        assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
        assert runtime.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)) == 0
        captured = weakref.ref(source)
        del source
        for _ in range(40):  # enough for what is not captured to be let go
            comm.allreduce(np.zeros(4), np.zeros(4), nccl.SUM, stream=stream)
        assert captured() is not None and not target.any()
        assert runtime.cudaGraphLaunch(executable, handle) == 0
        stream.synchronize()
        assert (target == 3).all()
        runtime.cudaGraphExecDestroy(executable)
        runtime.cudaGraphDestroy(graph)


FIRST_CALLS = """
import sys
import numpy
import nccl.core as nccl
from nccl.virtual import run

class Array:
    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__

def main(comm):
    array = numpy.full(4, comm.rank, numpy.float32)
    comm.allreduce(Array(array), Array(array), nccl.SUM)
    return array

sys.setswitchinterval(1e-6)
print(run(main, ranks=4)[0])
"""


def test_the_first_calls_of_several_threads_may_be_at_once() -> None:
    # What they import on the way lets go of the interpreter's lock.
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "[6. 6. 6. 6.]\n", done.stderr
