"""Making, asking and ending communicators, and what belongs to them."""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import nccl.core as nccl
import numpy as np
import pytest
from conftest import RANKS
from nccl import virtual
from nccl.bindings.nccl import NCCLError, Result
from nccl.core import Communicator, NCCLConfig, NcclInvalid


def test_null_communicators():
    null = Communicator()
    assert (null.ptr, null.is_valid, repr(null)) == (0, False, "<Communicator: null (ptr=0)>")
    null.destroy(), null.abort(), null.finalize(), null.close_all_resources()
    x = np.zeros(4, np.float32)
    properties = ["nranks", "rank", "device", "cuda_dev", "nvml_dev", "device_api_support",
                  "multimem_support", "gin_type", "n_lsa_teams", "host_rma_support", "railed_gin_type"]
    properties += ["properties", "team_world", "team_lsa", "team_rail", "team_cft_multimem"]
    team = nccl.NCCLTeam(1, 0, 1)
    calls = [lambda name=name: getattr(null, name) for name in properties] + [
        lambda: null.split(0), lambda: null.shrink([]), null.get_unique_id, lambda: null.grow(2),
        null.revoke, null.suspend, null.resume, null.get_last_error, null.get_async_error,
        lambda: null.get_mem_stat(0), lambda: null.send(x, 0), lambda: null.recv(x, 0),
        lambda: null.signal(0), lambda: null.wait_signal(nccl.WaitSignalDesc(0)),
        lambda: null.allreduce(x, x, nccl.SUM), lambda: null.reduce(x, x, nccl.SUM, 0),
        lambda: null.broadcast(x, x, 0), lambda: null.allgather(x, x), lambda: null.gather(x, x, 0),
        lambda: null.scatter(x, x, 0), lambda: null.reduce_scatter(x, x, nccl.SUM),
        lambda: null.alltoall(x, x), lambda: null.register_buffer(x), lambda: null.register_window(x),
        lambda: null.create_pre_mul_sum(1.0), null.create_dev_comm,
        null.team_cft, lambda: null.team_rank_to_world(team, 0), lambda: null.team_rank_to_lsa(team, 0),
    ]
    for call in calls:
        with pytest.raises(NcclInvalid, match="Cannot .*: the communicator is not initialized"):
            call()


def test_init_all_takes_a_number_a_sequence_or_nothing():
    assert Communicator.init_all([]) == []
    for devices, ordinals in [(2, [0, 1]), ([3, 1], [3, 1]), (range(2), [0, 1]), (None, list(range(8)))]:
        comms = Communicator.init_all(devices)
        assert [int(comm.device) for comm in comms] == ordinals
        assert [comm.rank for comm in comms] == list(range(len(ordinals)))
        for comm in comms:
            comm.abort()
    with pytest.raises(TypeError, match="devices"):
        Communicator.init_all("0,1")


def test_ranks_join_with_an_id():
    class Mine(Communicator):
        pass

    identity = nccl.get_unique_id()
    comms = []
    with nccl.group():
        for rank in range(2):
            virtual.devices()[rank].set_current()
            comms.append(Mine.init(2, rank, [identity]))
    assert [type(comm) for comm in comms] == [Mine, Mine]
    assert repr(comms[1]).startswith("<Communicator: rank=1/2, device=1, ptr=0x")
    with pytest.raises(NcclInvalid, match="already initialized"):
        comms[0].initialize(2, 0, identity)
    with pytest.raises(NcclInvalid, match="unique_id"):
        Communicator.init(1, 0, bytes(128))
    for comm in comms:
        comm.abort()
        assert not comm.is_valid


def test_properties(comm):
    assert (comm.nranks, comm.rank, comm.cuda_dev, comm.n_lsa_teams) == (1, 0, 0, 1)
    assert comm.device == 0 and int(comm.device) == 0
    assert comm.host_rma_support is True and comm.device_api_support is True
    assert comm.gin_type is nccl.NcclGinType.PROXY
    assert comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_TOTAL) >= 0
    assert isinstance(comm.get_last_error(), str)


def test_properties_come_together(comm):
    found = comm.properties
    assert (found.rank, found.n_ranks, found.cuda_dev, found.n_lsa_teams) == (0, 1, 0, 1)
    assert found.comm_hash > 0 and found.available_gin_types == {nccl.NcclGinType.PROXY}
    assert (found.cft_support, found.cft_multicast_support, found.cft_counted_support) == (False,) * 3
    assert found.gin_connection_type is nccl.NcclGinConnectionType.FULL


def _teams(comm):
    world, lsa = comm.team_world, comm.team_lsa
    members = [comm.team_rank_to_world(world, member) for member in range(world.n_ranks)]
    alone = [comm.team_cft(mode) for mode in nccl.NcclCftTeamMode]
    return world, lsa, comm.team_rail, members, comm.team_rank_to_lsa(lsa, 0), {*alone, comm.team_cft_multimem}, comm.properties.comm_hash


def test_teams(on_ranks):
    found = on_ranks(_teams)
    Team = nccl.NCCLTeam
    for rank, (world, lsa, rail, members, first, alone, _) in enumerate(found):
        assert (world, members, first) == (Team(RANKS, rank, 1), list(range(RANKS)), 0)
        assert lsa.n_ranks * rail.n_ranks == RANKS and rail.stride == lsa.n_ranks
        assert alone == {Team(1, 0, 1)}
    assert len({one[-1] for one in found}) == 1, "a communicator has one hash"


def _derive(comm):
    half = comm.split(comm.rank % 2, key=-comm.rank)
    alone = comm.split(None if comm.rank else 0)
    less = comm.shrink([RANKS - 1]) if comm.rank != RANKS - 1 else None
    x = np.full(3, comm.rank, np.int32)
    half.allreduce(x, x, nccl.SUM)
    answer = (half.rank, int(x[0]), alone.is_valid, less.nranks if less else None)
    for made in (half, alone, less):
        if made is not None:
            made.destroy()
    comm.suspend()
    comm.resume()
    comm.finalize()
    return answer


def test_split_and_shrink(on_ranks):
    answers = on_ranks(_derive)
    assert [one[0] for one in answers] == [1, 1, 0, 0], "by key, the highest rank first"
    assert [one[1] for one in answers] == [2, 4, 2, 4]
    assert [one[2] for one in answers] == [True, False, False, False]
    assert [one[3] for one in answers] == [3, 3, 3, None]


def test_grow():
    [comm] = Communicator.init_all(1)
    identity = comm.get_unique_id()
    grown = {}

    def join():
        virtual.devices()[1].set_current()
        grown["new"] = Communicator().grow(2, identity, rank=1)

    thread = threading.Thread(target=join)
    thread.start()
    grown["old"] = comm.grow(2, identity)
    thread.join()
    assert (grown["old"].nranks, grown["old"].rank, grown["new"].rank) == (2, 0, 1)
    with pytest.raises(NcclInvalid, match="new ranks"):
        comm.grow(2, identity, rank=1)
    for one in [grown["old"], grown["new"], comm]:
        one.abort()


def test_nonblocking_communicators():
    identity = nccl.get_unique_id()
    made = Communicator.init(1, 0, identity, NCCLConfig(blocking=False))
    deadline = time.monotonic() + 30
    while made.get_async_error() == Result.InProgress:
        assert time.monotonic() < deadline
    x = np.arange(5.0)
    y = np.zeros(5)
    made.allreduce(x, y, nccl.SUM)
    assert (x == y).all()
    made.abort()


def test_the_library_s_refusals_say_why(comm):
    with pytest.raises(NCCLError) as caught:
        comm.broadcast(np.zeros(3), np.zeros(3), comm.rank)
        comm.send(np.zeros(3), 17)
    assert caught.value.status == Result.InvalidArgument
    assert "17" in str(caught.value)


def test_resources_close_once_and_with_their_communicator(comm):
    memory = nccl.mem_alloc(4096)
    buffer = comm.register_buffer(memory)
    window = comm.register_window(memory, nccl.WindowFlag.COLL_SYMMETRIC)
    operator = comm.create_pre_mul_sum(2.0, nccl.FLOAT32)
    assert (buffer.size, window.size, window.is_valid) == (4096, 4096, True)
    assert window.user_ptr == memory.handle
    assert window.get_peer_device_pointer(0, 8) and window.get_lsa_device_pointer(0)
    assert window.get_lsa_multimem_device_pointer() is None
    assert repr(operator).startswith("<CustomRedOp: type=PreMulSum, dtype=float32, residence=HostImm")
    operator.close()
    operator.close()
    assert repr(operator) == "<CustomRedOp: closed>"
    with pytest.raises(RuntimeError, match="CustomRedOp has been closed and is no longer valid"):
        int(operator)
    with pytest.raises(RuntimeError):
        comm.allreduce(np.zeros(1), np.zeros(1), operator)
    comm.destroy()
    assert not buffer.is_valid and not window.is_valid and window.handle == 0
    with pytest.raises(RuntimeError):
        buffer.handle
    with pytest.raises(RuntimeError):
        window.user_ptr


def test_operators_multiply_before_they_sum(comm):
    x = np.arange(4, dtype=np.float32)
    y = np.zeros_like(x)
    for scalar, kind in [(3, nccl.FLOAT32), (np.float32(3), None), (np.array([3], np.float32), None),
                         (virtual.array([3], np.float32), nccl.FLOAT32)]:
        comm.allreduce(x, y, comm.create_pre_mul_sum(scalar, kind))
        assert (y == 3 * x).all()
    with pytest.raises(NcclInvalid, match="1"):
        comm.create_pre_mul_sum(np.zeros(2))
    with pytest.raises(NcclInvalid):
        comm.create_pre_mul_sum(object())


class _List(ctypes.Structure):
    """ncclDevResourceRequirements_t"""
_List._fields_ = [("next", ctypes.POINTER(_List)), ("bytes", ctypes.c_size_t), ("align", ctypes.c_size_t),
                  ("out_buffer", ctypes.c_void_p), ("signals", ctypes.c_int), ("counters", ctypes.c_int),
                  ("out_signal", ctypes.c_void_p), ("out_counter", ctypes.c_void_p)]


class _Teams(ctypes.Structure):
    """ncclTeamRequirements_t"""
_Teams._fields_ = [("next", ctypes.POINTER(_Teams)), ("team", ctypes.c_int * 3), ("multimem", ctypes.c_bool),
                   ("out", ctypes.c_void_p)]


def _linked(first):
    while first:
        yield first.contents
        first = first.contents.next


def test_requirements_of_device_communicators_reach_the_library(comm):
    lsa, other = comm.team_lsa, nccl.NCCLTeam(2, 0, 3)
    requirements = nccl.NCCLDevCommRequirements(
        teams=[nccl.TeamRequirement(lsa), nccl.TeamRequirement(other), nccl.TeamRequirement(lsa, multimem=True)],
        resources=[nccl.LsaBarrierRequirement(lsa, 5), nccl.GinBarrierRequirement(other, 3), nccl.LLA2ARequirement(2, 10, 12)])
    low, multimem, handles = requirements._lower(comm._comm)
    lists = (ctypes.c_void_p * 4).from_address(low.ptr)
    resources = list(_linked(ctypes.cast(lists[2], ctypes.POINTER(_List))))
    teams = list(_linked(ctypes.cast(lists[3], ctypes.POINTER(_Teams))))
    assert [(tuple(one.team), one.multimem, bool(one.out)) for one in teams] == [((1, 0, 1), True, True), ((2, 0, 3), False, False)]
    assert [kind for kind in map(type, handles)] == [nccl.LsaBarrierHandle, nccl.GinBarrierHandle, nccl.LLA2AHandle]
    assert (handles[0].n_barriers, handles[1].signal0, handles[2].n_slots) == (5, 0, 20)
    assert [one.signals for one in resources] == [0, 6, 0] and resources[2].bytes == 2 * (1 + 2 * 20) * 16
    # The library will store places in the handles.
    ctypes.c_uint32.from_address(resources[0].out_buffer).value = 7
    ctypes.c_uint32.from_address(resources[1].out_signal).value = 8
    ctypes.c_uint64.from_address(teams[0].out).value = 9
    assert (handles[0].buf_handle, handles[1].signal0, multimem[lsa].mc_base_pointer) == (7, 8, 9)
    with pytest.raises(TypeError, match="resources holds a int"):
        comm.create_dev_comm(nccl.NCCLDevCommRequirements(resources=[1]))
    with pytest.raises(NCCLError, match="negative"):
        comm.create_dev_comm(nccl.NCCLDevCommRequirements(resources=[nccl.LsaBarrierRequirement(lsa, -1)]))


def test_device_communicators_are_made(comm):
    for wanted in [None, nccl.NCCLDevCommRequirements(lsa_barrier_count=2, resources=[nccl.LLA2ARequirement(1, 1, 1)])]:
        made = comm.create_dev_comm(wanted)
        assert made.ptr != 0 and len(made.resource_handles) == (0 if wanted is None else 1)
        made.close()
        with pytest.raises(RuntimeError):
            made.ptr  # noqa: B018


def test_device_communicators_refuse_what_there_is_not(comm):
    for wanted, there_is in [(nccl.NCCLDevCommRequirements(barrier_count=1), "barrierCount = 1: networking for kernels has to be asked for"),
                             (nccl.NCCLDevCommRequirements(cft_caps=nccl.NcclCftCap.CFT), "there is no Compute Fabric Transport")]:
        with pytest.raises(NCCLError, match=there_is) as caught:
            comm.create_dev_comm(wanted)
        assert caught.value.status == Result.InvalidArgument


def test_device_communicators_hand_out_what_was_required(comm):
    from nccl.core.resources import DevCommResource
    from niccolite import _native

    multimem, barrier = nccl.MultimemHandle(), nccl.LsaBarrierHandle()
    made = DevCommResource(comm.ptr, _native.DevComm(), {comm.team_lsa: multimem}, [barrier])
    assert made.multimem_handle(comm.team_lsa) is multimem and made.resource_handles == (barrier,)
    with pytest.raises(KeyError, match="multimem=True"):
        made.multimem_handle(nccl.NCCLTeam(3, 0, 1))


def test_windows_have_no_endpoints_in_the_fabric(comm):
    window = comm.register_window(nccl.mem_alloc(4096))
    asked = [window.get_multimem_le_info, lambda: window.get_peer_le_info(0),
             lambda: window.get_cft_le_info(0, comm.team_cft(), offset=8)]
    for ask in asked:
        with pytest.raises(NCCLError, match="no window has an endpoint") as caught:
            ask()
        assert caught.value.status == Result.InvalidArgument
    with pytest.raises(NCCLError):
        window.get_multimem_device_pointer(nccl.MultimemHandle())
    window.close()
    for ask in [*asked, lambda: window.get_multimem_device_pointer(nccl.MultimemHandle())]:
        with pytest.raises(RuntimeError, match="has been closed"):
            ask()
    assert nccl.CftLeInfo(1, 2) == nccl.CftLeInfo(le_id=1, le_offset=2)


def test_a_fabric_that_must_be_used_is_refused():
    identity = nccl.get_unique_id()
    with pytest.raises(NCCLError, match="ncclHostCftFallback") as caught:
        Communicator.init(1, 0, identity, NCCLConfig(host_cft_mode=nccl.NcclHostCftMode.ENABLE))
    assert caught.value.status == Result.InvalidArgument
    made = Communicator.init(1, 0, identity, NCCLConfig(
        host_cft_mode=nccl.NcclHostCftMode.FALLBACK, launch_order_implicit=True, num_rma_sig=1, rma_eager_init=False,
        nvls_host_mode=nccl.NcclNvlsHostMode.DISABLE))
    made.destroy()


def test_groups_end_when_their_body_raises(comm):
    with pytest.raises(ZeroDivisionError):
        with nccl.group():
            1 / 0
    with pytest.raises(NCCLError):  # no group is open
        nccl.group_end()
    x, y = np.arange(3.0), np.zeros(3)
    with nccl.group(), nccl.group():
        comm.allreduce(x, y, nccl.SUM)
        assert not y.any(), "nothing is carried out before the end"
    assert (x == y).all()


def test_groups_can_be_simulated(comm):
    x, y = np.ones(3), np.zeros(3)
    nccl.group_start()
    comm.allreduce(x, y, nccl.SUM)
    info = nccl.group_end(simulate=True)
    assert isinstance(info.estimated_time, float) and not y.any()
    with pytest.raises(AttributeError):
        info.estimated_time = 0.0


def _held():
    """What this process holds: Python's objects, bytes of memory, threads, open files."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return (len(gc.get_objects()), resident, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))


def test_a_thousand_rounds_keep_nothing():
    source, target = np.ones(1 << 12, np.float32), np.ones(1 << 12, np.float32)

    def rounds(count):
        for _ in range(count):
            [comm] = Communicator.init_all(1)
            memory = nccl.mem_alloc(1 << 16)
            registered = comm.register_buffer(memory)
            comm.register_window(memory)  # ended by the communicator
            comm.allreduce(source, target, comm.create_pre_mul_sum(2.0, nccl.FLOAT32))
            comm.allreduce(memory, memory, nccl.SUM, stream=0)
            with virtual.stream(0) as stream:
                comm.broadcast(source, target, 0, stream=stream)
                stream.synchronize()
            with pytest.raises(NcclInvalid):
                comm.allreduce(source[::2], target, nccl.SUM)
            child = comm.split(0)
            child.abort()
            registered.close()
            comm.destroy()
            nccl.mem_free(memory)

    rounds(200)  # caches fill
    before = _held()
    rounds(1000)
    after = _held()
    assert after[0] - before[0] < 50
    assert after[1] - before[1] < 2 << 20, "less than 2 KiB a round"
    assert after[2:] == before[2:]


def test_a_thousand_calls_keep_nothing(comm):
    def rounds(count):
        for i in range(count):
            array = np.full(1 << 12, i, np.float32)
            comm.allreduce(array, array, nccl.SUM, stream=0)
            comm.allgather(array, np.empty_like(array))

    rounds(200)
    before = _held()
    rounds(1000)
    after = _held()
    assert after[0] - before[0] < 50 and after[2:] == before[2:]
    assert after[1] - before[1] < 2 << 20, "the arrays together have 32 MiB"


INTERRUPTED = """
import _thread, os, signal, sys, threading, time
import nccl.core as nccl, numpy as np
from nccl import virtual
virtual.devices(2)
if sys.argv[1] == "init":
    wait = lambda: nccl.Communicator.init(2, 0, nccl.get_unique_id())
elif sys.argv[1] == "group":
    def wait():
        with nccl.group():
            nccl.Communicator.init(2, 0, nccl.get_unique_id())
else:
    comm, other = nccl.Communicator.init_all(2)
    wait = {"split": lambda: comm.split(0), "recv": lambda: comm.recv(np.ones(4), 1),
            "call": lambda: comm.allreduce(np.ones(4), np.ones(4), nccl.SUM)}[sys.argv[1]]
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    wait()
except KeyboardInterrupt as interrupt:
    print(interrupt)
    if sys.argv[1] not in ("init", "group"):
        try:
            wait()
        except nccl.NcclInvalid as error:
            print(error)
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize(("where", "call"), [
    ("init", "init"), ("group", "init"), ("call", "allreduce"), ("recv", "recv"), ("split", "split"),
])
def test_ctrl_c_ends_waits_and_says_for_whom(where, call):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, where], timeout=30,
                          stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"rank 0 of 2 waited in {call} for rank 1. Its communicator was aborted. ")
    assert lines[1:] == ([] if call == "init" else [f"Cannot {call}: the communicator has been aborted"])


def test_destroyed_and_aborted_communicators_say_so():
    for end in ["destroy", "abort"]:
        [comm] = Communicator.init_all(1)
        assert comm.rank == 0
        getattr(comm, end)()
        for name, call in [("allreduce", lambda: comm.allreduce(np.ones(1), np.ones(1), nccl.SUM)),
                           ("split", lambda: comm.split(0)), ("get rank", lambda: comm.rank)]:
            with pytest.raises(NcclInvalid, match=f"Cannot {name}: the communicator has been {end.rstrip('e')}ed"):
                call()
        assert f"has been {end.rstrip('e')}ed" in comm._repr_html_()


def test_a_communicator_that_is_initialized_again_has_its_new_rank():
    [comm] = Communicator.init_all(1)
    assert (comm.rank, comm.nranks, comm.properties.n_ranks) == (0, 1, 1)
    comm.destroy()
    virtual.devices(2)
    identity = nccl.get_unique_id()
    first = Communicator()
    with nccl.group():
        for rank, one in enumerate([first, comm]):
            virtual.devices()[rank].set_current()
            one.initialize(2, rank, identity)
    assert (comm.rank, comm.nranks, comm.properties.n_ranks, int(comm.device)) == (1, 2, 2, 1)
    comm.abort(), first.abort()


def test_communicators_show_themselves_in_a_notebook(comm):
    shown = comm._repr_html_()
    for part in ["<th>rank</th><td>0 of 1</td>", "virtual GPU 0", "MiB", "ready"]:
        assert part in shown


# Rank 0 waits in a call while rank 1's process ends.
def test_calls_of_nonblocking_children_return_when_they_are_done():
    """A child without a configuration is as its parent is, and so is one whose handle is taken over."""
    identity = nccl.get_unique_id()
    big = 1 << 22

    def settle(comm):
        while comm.get_async_error() == Result.InProgress:
            time.sleep(0.001)

    def rank_of(rank, results):
        virtual.devices()[rank].set_current()
        parent = Communicator.init(2, rank, identity, NCCLConfig(blocking=False))
        settle(parent)
        child = parent.split(0)
        settle(parent), settle(child)
        for comm in (child, Communicator(ptr=child.ptr)):
            x, y = np.full(big, rank + 1, np.float32), np.zeros(big, np.float32)
            comm.allreduce(x, y, nccl.SUM)
            results.append((comm.get_async_error(), y[0] == 3 and y[-1] == 3))
        child.destroy(), parent.destroy()

    results = []
    threads = [threading.Thread(target=rank_of, args=(rank, results)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(Result.Success, True)] * 4


def test_no_communicator_is_destroyed_in_a_group():
    comm, = Communicator.init_all(1)
    window = comm.register_window(nccl.mem_alloc(4096))
    with pytest.raises(NcclInvalid, match="of a group"):
        with nccl.group():
            comm.destroy()
    assert comm.is_valid and window.is_valid
    comm.destroy()
    assert not comm.is_valid


DESERTED = """
import gc, os, sys, threading, weakref
from multiprocessing import Pipe
import nccl.core as nccl, numpy as np
from nccl import virtual
from nccl.bindings.nccl import NCCLError, Result
here, there = Pipe()
rank = 1 if os.fork() == 0 else 0
if rank == 0:
    identity = nccl.get_unique_id()
    here.send(bytes(identity))
else:
    identity = nccl.UniqueId.from_bytes(there.recv())
virtual.devices()[rank].set_current()
comm = nccl.Communicator.init(2, rank, identity)
x, y = np.ones(4), np.zeros(4)
comm.allreduce(x, y, nccl.SUM)
if rank == 1:
    there.recv()
    os._exit(1)
def wait():
    threading.Timer(0.5, here.send, ("end",)).start()
    try:
        if sys.argv[1] == "group":
            with nccl.group():
                comm.allreduce(x, y, nccl.SUM)
        else:
            comm.allreduce(x, y, nccl.SUM)
    except NCCLError as error:
        print(Result(error.status).name, "rank 1 (process" in str(error))
if sys.argv[1] == "thread":
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
else:
    wait()
is_alive = weakref.ref(y)
if sys.argv[2] == "aborted":
    comm.abort()
if sys.argv[2] == "destroyed":
    try:
        comm.destroy()
    except NCCLError as error:
        print(Result(error.status).name, comm.is_valid)
del comm, x, y, wait
gc.collect()
print("kept" if is_alive() is not None else "freed")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("where", ["call", "group", "thread"])
def test_a_dead_peer_ends_waits(where):
    done = subprocess.run([sys.executable, "-c", DESERTED, where, "aborted"], timeout=30,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == "RemoteError True\nfreed\n"


def test_a_failed_communicator_is_gone_when_it_is_destroyed():
    done = subprocess.run([sys.executable, "-c", DESERTED, "call", "destroyed"], timeout=30,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == "RemoteError True\nRemoteError False\nfreed\n"


def test_memory_outlives_a_failed_communicator_that_nobody_ended():
    done = subprocess.run([sys.executable, "-c", DESERTED, "call", "dropped"], timeout=30,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == "RemoteError True\nkept\n"


MISMATCHED = """
import numpy as np, nccl.core as nccl
from nccl.virtual import RankError, run
def main(comm):
    x = np.zeros(4 + comm.rank)
    comm.allreduce(x, x, nccl.SUM)
try:
    run(main, ranks=2, processes={processes})
except RankError as error:
    print("count 5" in str(error), "must make the same calls" in str(error))
"""


@pytest.mark.parametrize("processes", [False, True])
def test_calls_that_do_not_match_end_waits(processes):
    done = subprocess.run([sys.executable, "-c", MISMATCHED.format(processes=processes)], timeout=30,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == "True True\n"


# A call waits, which another thread cuts short.
ABORTED = """
import os, sys, threading
import nccl.core as nccl, numpy as np
waiting, other = nccl.Communicator.init_all(2)
threading.Timer(0.5, waiting.abort).start()
try:
    waiting.allreduce(np.ones(4), np.ones(4), nccl.SUM)
except nccl.NcclInvalid as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


def test_an_abort_ends_the_wait_of_another_thread():
    done = subprocess.run([sys.executable, "-c", ABORTED], timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stdout == "the communicator was aborted during the call\n"
    assert "not a communicator" not in done.stderr


# "slowly": the ranks are interrupted one after the other, and hear of each other's end before.
RUN_INTERRUPTED = """
import os, signal, sys, threading, time, numpy as np, nccl.core as nccl
from nccl.virtual import run
kill = os.kill
def kill_slowly(process, number):
    kill(process, number)
    if process != os.getpid(): time.sleep(0.3)
if sys.argv[1] == "slowly": os.kill = kill_slowly
arrivals, arrive = os.pipe()
def main(comm):
    comm.allreduce(np.ones(4), np.ones(4), nccl.SUM)
    os.write(arrive, b".")
    if comm.rank == 1: threading.Event().wait(20)
    if comm.rank == 3: comm.recv(np.ones(4), 1)
    comm.allreduce(np.ones(4), np.ones(4), nccl.SUM)
def interrupt():
    for _ in range(4): os.read(arrivals, 1)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
threading.Thread(target=interrupt, daemon=True).start()
run(main, ranks=4, processes=sys.argv[1] != "threads")
"""


@pytest.mark.parametrize("how", ["threads", "processes", "slowly"])
def test_ctrl_c_ends_a_run_and_says_who_waited_for_whom(how):
    done = subprocess.run([sys.executable, "-c", RUN_INTERRUPTED, how], timeout=30,
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode in (1, -signal.SIGINT)
    assert done.stderr.splitlines()[-1] == (
        "KeyboardInterrupt: run() of 4 ranks was interrupted: ranks 0, 2 waited in allreduce (<string>:15) for "
        "ranks 1, 3; rank 1 ran <string>:13; rank 3 waited in recv (<string>:14) for rank 1")


# Rank 2 is killed while the others are in a call, or wait for something of their own; or when it has
# an heir, a process that has all that it had open.
KILLED = """
import os, signal, sys, threading, numpy as np, nccl.core as nccl
from nccl import virtual
from nccl.virtual import RankError, run
def main(comm, case):
    if comm.rank == 2:
        if case == "heir" and os.fork() == 0:
            os.close(1), os.close(2)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "call":
        x = np.ones(4)
        comm.allreduce(x, x, nccl.SUM)
    threading.Event().wait()
if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        virtual.devices(3)
    try:
        run(main, ranks=3, args=(sys.argv[2],), processes=True)
    except RankError as error:
        print(error.rank, error)
"""


@pytest.mark.parametrize("start, case", [("fork", "wait"), ("spawn", "wait"), ("fork", "call"), ("fork", "heir")])
def test_a_killed_process_ends_a_run(start, case, tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    with subprocess.Popen([sys.executable, program, start, case], stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as running:
        try:
            told, _ = running.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert told == "2 rank 2 of 3 failed: its process has ended without a result (signal 9, Killed)\n"


# Rank 1 has a child, however it was started, which works, disturbs nobody, and outlives it.
PARENT = """
import multiprocessing, os, signal, sys
def work(pipe):
    os.close(1), os.close(2)
    pipe.send((os.getpid(), sum(range(1000))))
    signal.pause()
if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    rank = 1 if os.fork() == 0 else 0
    import nccl.core as nccl, numpy as np
    from nccl import virtual
    from nccl.bindings.nccl import NCCLError, Result
    if rank == 0:
        identity = nccl.get_unique_id()
        here.send(bytes(identity))
    else:
        identity = nccl.UniqueId.from_bytes(there.recv())
    virtual.devices()[rank].set_current()
    comm = nccl.Communicator.init(2, rank, identity)
    x = np.ones(4)
    comm.allreduce(x, x, nccl.SUM)
    if rank == 1:
        start = multiprocessing.get_context(sys.argv[1])
        result, pipe = start.Pipe(duplex=False)
        start.Process(target=work, args=(pipe,)).start()
        there.send(result.recv())
        comm.allreduce(x, x, nccl.SUM)
        os.kill(os.getpid(), signal.SIGKILL)
    child, result = here.recv()
    comm.allreduce(x, x, nccl.SUM)
    try:
        comm.allreduce(x, x, nccl.SUM)
    except NCCLError as error:
        print(result, x[0], Result(error.status).name, "rank 1 (process" in str(error))
    os.kill(child, signal.SIGKILL)
    print("outlived", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("start", ["fork", "forkserver", "spawn"])
def test_children_disturb_nobody_and_hide_no_death(start, tmp_path):
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    done = subprocess.run([sys.executable, program, start], timeout=60, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "499500 4.0 RemoteError True\noutlived\n"


def _fail(comm):
    if comm.rank == 2:
        raise ValueError("rank 2 does not like this")
    x = np.zeros(4)
    comm.allreduce(x, x, nccl.SUM)


def test_the_first_failure_is_shown_with_its_rank(on_ranks):
    with pytest.raises(virtual.RankError, match="rank 2 of 4 failed") as caught:
        on_ranks(_fail)
    assert caught.value.rank == 2 and "does not like this" in str(caught.value)
