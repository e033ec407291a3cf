"""One-sided communication: a rank writes into another one's window, and a signal tells that it is there.

    python examples/python/one_sided.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS, COUNT = 4, 1000


def put(comm: nccl.Communicator) -> None:
    """Every rank puts its values into its place at the next rank. What is put lies in a window, too; offsets count
    elements of the buffer that is put."""
    rank, n = comm.rank, comm.nranks
    places = virtual.array(np.zeros((n + 1, COUNT), np.float32))  # one for each rank, and what is put
    window = comm.register_window(places, nccl.WindowFlag.COLL_SYMMETRIC)
    assert window is not None
    following, previous = (rank + 1) % n, (rank - 1) % n
    places[n] = rank
    comm.put_signal(places[n], following, window, peer_window_offset=rank * COUNT)
    comm.wait_signal(nccl.WaitSignalDesc(previous))
    assert (places[previous] == previous).all()
    comm.finalize()  # nobody puts any more
    window.close()


def many_signals(comm: nccl.Communicator) -> None:
    """A wait takes several signals, of several ranks: here everybody waits for two of each other rank."""
    others = [peer for peer in range(comm.nranks) if peer != comm.rank]
    for peer in others:
        comm.signal(peer)
        comm.signal(peer)
    comm.wait_signal([nccl.WaitSignalDesc(peer, op_count=2) for peer in others])


def main(comm: nccl.Communicator) -> None:
    assert comm.host_rma_support
    many_signals(comm)
    put(comm)


if __name__ == "__main__":
    virtual.run(main, ranks=RANKS)
    virtual.run(main, ranks=RANKS, processes=True)
    print(f"{RANKS} ranks have put and signalled, in threads and in processes")
