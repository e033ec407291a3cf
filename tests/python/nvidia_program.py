"""A program for NVIDIA's nccl4py and cuda-core: every collective, groups, splits, windows, mapped and shared memory, graphs, on four GPUs.

What is not usual is how it fills and reads buffers: the memory of virtual GPUs is the host's.
"""

import ctypes
import multiprocessing
import os
import threading
import traceback

import nccl.core as nccl
import numpy as np
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    VirtualMemoryResource,
    VirtualMemoryResourceOptions,
    system,
)
from cuda.core.graph import GraphBuilder, GraphDefinition

RANKS = 4
FLOAT = np.dtype(np.float32)


class Array:
    """Floats on a device, which other packages take by the interface of CUDA arrays."""

    def __init__(self, buffer, values=None):
        self.buffer = buffer
        self.values = np.ctypeslib.as_array((ctypes.c_ubyte * buffer.size).from_address(int(buffer.handle))).view(FLOAT)
        if values is not None:
            self.values[:] = values

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.values.shape, "typestr": FLOAT.str, "data": (int(self.buffer.handle), False), "version": 3, "strides": None}


def use_devices():
    """What cuda-core does by itself."""
    device = Device(0)
    device.set_current()
    assert "Virtual" in device.name and len(Device.get_all_devices()) == RANKS
    stream = device.create_stream()
    buffer = device.allocate(1024, stream=stream)
    buffer.fill(7, stream=stream)
    host = LegacyPinnedMemoryResource().allocate(1024)
    buffer.copy_to(host, stream=stream)
    stream.sync()
    assert bytes((ctypes.c_ubyte * 1024).from_address(int(host.handle))) == b"\x07" * 1024
    start, end = stream.record(), stream.record()
    end.sync()
    assert start.is_done and end.is_done


def use_system():
    """The management library, which knows of the same GPUs."""
    assert system.get_num_devices() == RANKS
    assert system.get_user_mode_driver_version() >= (13, 0)
    devices = list(system.Device.get_all_devices())
    assert len({device.uuid for device in devices}) == RANKS
    for index, device in enumerate(devices):
        assert device.name == Device(index).name
        assert device.uuid.removeprefix("GPU-") == Device(index).uuid.removeprefix("GPU-")
        assert device.memory_info.total > 0


def bytes_of(buffer):
    return np.ctypeslib.as_array((ctypes.c_ubyte * buffer.size).from_address(int(buffer.handle)))


def use_mapped_memory():
    """Virtual memory management, as cuda-core does it: two mappings of one buffer."""
    device = Device(0)
    stream = device.create_stream()
    assert device.properties.virtual_memory_management_supported
    unit = 2 << 20
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(peers=[1, 2]))
    small = resource.allocate(100)
    assert small.size == unit
    small.fill(3, stream=stream)
    stream.sync()
    large = resource.modify_allocation(small, 3 * unit)  # may warn: cuda-core frees a range that has moved twice
    assert large.size == 3 * unit and (bytes_of(large)[:unit] == 3).all(), "it has grown, and has kept what was in it"
    large.fill(4, stream=stream)
    stream.sync()
    assert (bytes_of(large) == 4).all()


def use_shared_pool():
    """A pool of memory that another process takes an allocation of."""
    device = Device(0)
    stream = device.create_stream()
    resource = DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True))
    buffer = resource.allocate(4096, stream=stream)
    buffer.fill(1, stream=stream)
    stream.sync()
    child = multiprocessing.Process(target=fill_in_child, args=(buffer,))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and (bytes_of(buffer) == 8).all()
    buffer.close(stream)


def fill_in_child(buffer):
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    assert buffer.is_mapped and (bytes_of(buffer) == 1).all()
    buffer.fill(8, stream=stream)
    stream.sync()
    buffer.close(stream)


def use_graphs():
    """Graphs made by hand, captured, embedded and updated."""
    device = Device(0)
    stream = device.create_stream()
    source, target = device.allocate(64, stream=stream), device.allocate(64, stream=stream)
    calls = []

    definition = GraphDefinition()
    fill = definition.memset(source, 7, 64)
    call = fill.memcpy(target, source, 64).callback(lambda: calls.append(bytes_of(target)[63]))
    event = device.create_event()
    definition.join(call, definition.empty()).record(event)
    assert len(definition.nodes()) == 6 and len(definition.edges()) == 5
    graph = definition.instantiate()
    graph.launch(stream)
    event.sync()
    assert calls == [7]
    fill.update(value=9)
    graph.update(definition)
    graph.launch(stream)
    stream.sync()
    assert calls == [7, 9]
    outer = GraphDefinition()
    assert len(outer.embed(definition).child_graph.nodes()) == 6
    outer.instantiate().launch(stream)
    stream.sync()
    assert calls == [7, 9, 9]

    calls.clear()
    child = device.create_graph_builder().begin_building()
    child.callback(lambda: calls.append("child"))
    child.end_building()
    builder = device.create_graph_builder().begin_building()
    source.fill(5, stream=builder)
    for branch in (branches := builder.split(3)):
        branch.callback(lambda: calls.append(bytes_of(source)[0]))
    builder = GraphBuilder.join(*branches)
    builder.embed(child)
    builder.callback(lambda: calls.append("end"))
    builder.end_building()
    assert len(builder.graph_definition.nodes()) == 6
    graph = builder.complete()
    graph.upload(stream)
    for _ in range(2):
        graph.launch(stream)
    stream.sync()
    assert calls == 2 * [5, 5, 5, "child", "end"]


def use_communicator(rank, unique_id):
    device = Device(rank)
    device.set_current()
    stream = device.create_stream()
    comm = nccl.Communicator.init(nranks=RANKS, rank=rank, unique_id=unique_id)
    assert comm.nranks == RANKS and comm.rank == rank

    def array(values):
        values = np.atleast_1d(np.asarray(values, FLOAT))
        made = Array(device.allocate(values.nbytes, stream=stream))
        stream.sync()
        made.values[:] = values
        return made

    def check(found, expected):
        stream.sync()
        np.testing.assert_array_equal(found.values, np.broadcast_to(np.asarray(expected, FLOAT), found.values.shape))

    ranks = np.arange(RANKS)
    blocks = np.repeat(ranks, 3)
    output = array(np.zeros(1000))
    comm.allreduce(array(np.full(1000, rank + 1)), output, nccl.SUM, stream=stream)
    check(output, 10)
    output = array(np.zeros(10))
    comm.reduce_scatter(array(np.arange(RANKS * 10)), output, nccl.SUM, stream=stream)
    check(output, RANKS * np.arange(rank * 10, rank * 10 + 10))
    output = array(np.zeros(RANKS * 3))
    comm.allgather(array(np.full(3, rank)), output, stream=stream)
    check(output, blocks)
    output = array(np.full(5, rank))
    comm.broadcast(output, output, root=1, stream=stream)
    check(output, 1)
    output = array(np.zeros(5))
    comm.reduce(array(np.full(5, rank)), output, nccl.MAX, root=2, stream=stream)
    check(output, RANKS - 1 if rank == 2 else 0)
    output = array(np.zeros(RANKS * 3))
    comm.alltoall(array(10 * rank + blocks), output, stream=stream)
    check(output, 10 * blocks + rank)
    output = array(np.zeros(RANKS * 3))
    comm.gather(array(np.full(3, rank)), output, root=0, stream=stream)
    check(output, blocks if rank == 0 else 0)
    output = array(np.zeros(3))
    comm.scatter(array(blocks), output, root=3, stream=stream)
    check(output, rank)
    output, sent = array(np.zeros(7)), array(np.full(7, rank))  # both live until the group has ended
    with nccl.group():
        comm.send(sent, peer=(rank + 1) % RANKS, stream=stream)
        comm.recv(output, peer=(rank - 1) % RANKS, stream=stream)
    check(output, (rank - 1) % RANKS)

    half = comm.split(color=rank % 2, key=rank)
    output = array(np.full(5, rank))
    half.allreduce(output, output, nccl.SUM, stream=stream)
    check(output, sum(other for other in range(RANKS) if other % 2 == rank % 2))
    half.destroy()

    mapped = Array(VirtualMemoryResource(device).allocate(4096), rank + 1)
    window = comm.register_window(mapped.buffer)
    comm.allreduce(mapped, mapped, nccl.SUM, stream=stream)
    check(mapped, 10)
    window.close()
    shared = Array(nccl.mem_alloc(4096), rank + 1)
    window = comm.register_window(shared.buffer)
    comm.allreduce(shared, shared, nccl.SUM, stream=stream)
    check(shared, 10)
    window.close()
    comm.register_buffer(shared.buffer).close()
    twice = comm.create_pre_mul_sum(2.0, nccl.FLOAT32)
    output = array(np.full(9, rank + 1))
    comm.allreduce(output, output, twice, stream=stream)
    check(output, 20)
    twice.close()
    try:
        comm.allreduce(array(np.ones(4)), array(np.ones(2)), nccl.SUM, stream=stream)
    except nccl.NcclInvalid:
        pass
    else:
        raise AssertionError("a buffer that is too small is taken")
    comm.finalize()
    comm.destroy()


def main():
    nccl.show_versions()
    use_devices()
    use_system()
    use_mapped_memory()
    use_shared_pool()
    use_graphs()
    unique_id = nccl.get_unique_id()

    def run(rank):
        try:
            use_communicator(rank, unique_id)
        except BaseException:
            print(f"rank {rank}: {traceback.format_exc()}", flush=True)
            os._exit(1)  # the others wait for it

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{RANKS} ranks: all right")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
