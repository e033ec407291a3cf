"""Messages between two ranks; exchanges of several are a group.

    python examples/python/point_to_point.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS = 4


def pipeline(comm: nccl.Communicator) -> None:
    """Each rank receives, adds, and sends on."""
    values = np.zeros(100, np.float32)
    if comm.rank > 0:
        comm.recv(values, comm.rank - 1)
    values += 1
    if comm.rank < comm.nranks - 1:
        comm.send(values, comm.rank + 1)
    assert (values == comm.rank + 1).all()


def swap_edges(comm: nccl.Communicator) -> None:
    """A field that is split by rows: each rank needs the neighbours' nearest ones. Sends and receives that wait for
    each other are put into a group; then their order does not matter."""
    field = np.full((10 + 2, 32), comm.rank, np.float64)  # a row more on either side
    above, below = comm.rank - 1, comm.rank + 1
    with nccl.group():
        if above >= 0:
            comm.send(field[1], above)
            comm.recv(field[0], above)
        if below < comm.nranks:
            comm.send(field[-2], below)
            comm.recv(field[-1], below)
    assert (field[0] == max(above, 0)).all() and (field[-1] == min(below, comm.nranks - 1)).all()


def uneven_all_to_all(comm: nccl.Communicator) -> None:
    """Rank i sends i + j elements to rank j, itself included."""
    rank, n = comm.rank, comm.nranks
    sent = [np.full(rank + peer, 10 * rank + peer, np.int32) for peer in range(n)]
    received = [np.zeros(peer + rank, np.int32) for peer in range(n)]
    with nccl.group():
        for peer in range(n):
            comm.send(sent[peer], peer)
            comm.recv(received[peer], peer)
    for peer, block in enumerate(received):
        assert (block == 10 * peer + rank).all()


def main(comm: nccl.Communicator) -> None:
    pipeline(comm)
    swap_edges(comm)
    uneven_all_to_all(comm)


if __name__ == "__main__":
    virtual.run(main, ranks=RANKS)
    print(f"{RANKS} ranks have exchanged messages")
