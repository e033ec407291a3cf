"""How communicators are made, derived from one another, and ended.

    python examples/python/lifecycle.py
"""

import pickle
import threading

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS = 4


def total(comm: nccl.Communicator) -> int:
    """How many ranks take part in a sum over `comm`."""
    ones = np.ones(1, np.int32)
    comm.allreduce(ones, ones, nccl.SUM)
    return int(ones[0])


def share_an_id() -> None:
    """A unique id is 128 bytes that travel by whatever there is: bytes, a NumPy array, or pickle."""
    made = nccl.get_unique_id()
    by_bytes = nccl.UniqueId.from_bytes(bytes(made))
    by_pickle = pickle.loads(pickle.dumps(made))
    by_array = nccl.get_unique_id(empty=True)
    by_array.as_ndarray[:] = made.as_ndarray  # what MPI.Comm.Bcast does
    assert bytes(by_bytes) == bytes(by_pickle) == bytes(by_array) == bytes(made)


def join_with_an_id() -> None:
    """Every rank calls init() with the same id. One thread that makes several ranks groups the calls."""
    identity = nccl.get_unique_id()
    config = nccl.NCCLConfig(comm_name="example", max_ctas=4)
    comms: list[nccl.Communicator] = []
    with nccl.group():
        for rank, device in enumerate(virtual.devices(RANKS)):
            device.set_current()
            comms.append(nccl.Communicator.init(RANKS, rank, identity, config))
    assert [comm.rank for comm in comms] == list(range(RANKS))
    assert [int(comm.device) for comm in comms] == list(range(RANKS))
    for comm in comms:
        comm.destroy()


def split(comm: nccl.Communicator) -> None:
    """Ranks of one color are together, in the order of their keys. No color: in none of them."""
    half = comm.split(color=comm.rank % 2, key=-comm.rank)
    assert half.nranks == total(half) == RANKS // 2
    assert half.rank == (RANKS - 1 - comm.rank) // 2, "the highest rank has the lowest key"
    first_two = comm.split(color=0 if comm.rank < 2 else None)
    assert first_two.is_valid == (comm.rank < 2)
    half.destroy()
    first_two.destroy()  # of a null communicator: nothing to do


def shrink(comm: nccl.Communicator) -> None:
    """The ranks that stay make a communicator without the last one, which does not call."""
    if comm.rank == RANKS - 1:
        return
    fewer = comm.shrink(exclude_ranks=[RANKS - 1])
    assert fewer.nranks == total(fewer) == RANKS - 1
    fewer.destroy()


def suspend(comm: nccl.Communicator) -> None:
    """Device memory goes back while a communicator has nothing to do."""
    comm.suspend(nccl.CommSuspendFlag.MEM)
    assert comm.get_mem_stat(nccl.NcclCommMemStat.GPU_MEM_SUSPENDED) >= 0
    comm.resume()
    assert total(comm) == RANKS


def go_on_after_an_error(comm: nccl.Communicator) -> None:
    """revoke() stops what is in flight; the ranks that live go on in a new communicator, here without rank 0."""
    comm.revoke()
    if comm.rank == 0:
        return
    alive = comm.shrink(exclude_ranks=[0], flag=nccl.CommShrinkFlag.ABORT)
    assert total(alive) == RANKS - 1
    alive.destroy()


def grow() -> None:
    """Two ranks take in a third, which has nothing but the id that one of them has made."""
    virtual.devices(3)[0].set_current()
    comms = nccl.Communicator.init_all(2)
    identity = comms[0].get_unique_id()
    grown: dict[int, nccl.Communicator] = {}

    def member(rank: int) -> None:
        virtual.devices()[rank].set_current()
        if rank == 0:
            grown[rank] = comms[0].grow(3, identity)
        elif rank == 1:
            grown[rank] = comms[1].grow(3)
        else:
            grown[rank] = nccl.Communicator().grow(3, identity, rank=rank)
        assert total(grown[rank]) == 3

    members = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
    for thread in members:
        thread.start()
    for thread in members:
        thread.join()
    assert [grown[rank].nranks for rank in range(3)] == [3, 3, 3]
    for comm in [*grown.values(), *comms]:
        comm.abort()


def main(comm: nccl.Communicator) -> None:
    split(comm)
    shrink(comm)
    suspend(comm)
    go_on_after_an_error(comm)


if __name__ == "__main__":
    share_an_id()
    join_with_an_id()
    virtual.run(main, ranks=RANKS)
    grow()
    print("communicators were made, split, shrunk, grown, suspended, revoked and ended")
