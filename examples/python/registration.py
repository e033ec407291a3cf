"""Memory that a communicator knows beforehand: registered buffers, and windows that all ranks can reach.

    python examples/python/registration.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS, COUNT = 4, 1 << 16


def registered_buffers(comm: nccl.Communicator) -> None:
    """Each rank registers on its own. Peers reach such a buffer directly, also from other processes."""
    memory = nccl.mem_alloc(4 * COUNT)  # device memory that can be shared
    values = np.frombuffer(memoryview(memory), np.float32)  # the same memory
    values[:] = comm.rank
    handle = comm.register_buffer(memory)
    assert handle.is_valid and handle.size == memory.size
    comm.allreduce(values, values, nccl.SUM)
    assert (values == sum(range(comm.nranks))).all()
    handle.close()
    handle.close()  # closing twice does nothing


def windows(comm: nccl.Communicator) -> None:
    """All ranks register a window together. Operations on memory inside it go faster, and one-sided ones need it."""
    array = virtual.array(np.full(COUNT, comm.rank, np.float32))  # of this rank's device
    window = comm.register_window(array, nccl.WindowFlag.COLL_SYMMETRIC)
    assert window is not None and window.is_valid and window.user_ptr == array.ctypes.data
    comm.allreduce(array[: COUNT // 2], array[: COUNT // 2], nccl.SUM)
    assert array[0] == sum(range(comm.nranks)) and array[-1] == comm.rank

    # Where the peers' parts are, for whoever loads and stores there itself (elsewhere: a kernel).
    addresses = [window.get_peer_device_pointer(peer) for peer in range(comm.nranks)]
    assert len(set(addresses)) == comm.nranks
    window.close()


def resources_end_with_their_communicator(comm: nccl.Communicator) -> None:
    half = comm.split(comm.rank % 2)
    window = half.register_window(nccl.mem_alloc(4096))
    assert window is not None
    half.destroy()
    assert not window.is_valid and window.handle == 0


def main(comm: nccl.Communicator) -> None:
    registered_buffers(comm)
    windows(comm)
    resources_end_with_their_communicator(comm)


if __name__ == "__main__":
    virtual.run(main, ranks=RANKS)
    virtual.run(main, ranks=RANKS, processes=True)
    print(f"{RANKS} ranks have registered memory, in threads and in processes")
