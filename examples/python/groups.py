"""What groups are for: one thread with several ranks, many small operations at once, and an estimate of their time.

    python examples/python/groups.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS = 4


def one_thread_for_all_ranks(comms: list[nccl.Communicator]) -> None:
    """Outside of a group the first call would wait for the other ranks, whose turn would never come."""
    values = [np.full(1000, comm.rank, np.float32) for comm in comms]
    with nccl.group():
        for comm, mine in zip(comms, values):
            comm.allreduce(mine, mine, nccl.SUM)
    assert all((mine == sum(range(RANKS))).all() for mine in values)


def many_at_once(comms: list[nccl.Communicator]) -> None:
    """The operations of a group start together: on a GPU small ones share a launch. Groups nest; the outermost ends it."""
    gradients = [[np.full(16, comm.rank + layer, np.float32) for layer in range(20)] for comm in comms]
    with nccl.group():
        for comm, layers in zip(comms, gradients):
            with nccl.group():
                for layer in layers:
                    comm.allreduce(layer, layer, nccl.AVG)
    mean = sum(range(RANKS)) / RANKS
    assert all((layers[i] == mean + i).all() for layers in gradients for i in range(20))


def estimate(comms: list[nccl.Communicator]) -> float:
    """A simulated group executes nothing; it tells how long its operations would take."""
    values = np.ones(1 << 20, np.float32)
    sums = np.zeros_like(values)
    nccl.group_start()
    for comm in comms:
        comm.allreduce(values, sums, nccl.SUM)
    info = nccl.group_end(simulate=True)
    assert info is not None and not sums.any()
    return info.estimated_time


def errors(comms: list[nccl.Communicator]) -> None:
    """A group ends also when its body raises, so that the next one begins anew."""
    try:
        with nccl.group():
            comms[0].allreduce(np.ones(4), np.ones(3), nccl.SUM)
    except nccl.NcclInvalid as error:
        assert "recvbuf has 3 elements" in str(error)
    one_thread_for_all_ranks(comms)


if __name__ == "__main__":
    virtual.devices(RANKS)
    comms = nccl.Communicator.init_all(RANKS)
    one_thread_for_all_ranks(comms)
    many_at_once(comms)
    time = estimate(comms)
    errors(comms)
    for comm in comms:
        comm.destroy()
    print(f"groups work; a simulated one of 4 MiB would take {time:.0f} us")
