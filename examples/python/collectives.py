"""All collectives, each beside what NumPy says.

    python examples/python/collectives.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS, ROOT, COUNT = 4, 1, 1000


def values(rank: int, count: int = COUNT) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return (np.arange(count) % 7 + rank).astype(np.float32)


def main(comm: nccl.Communicator) -> None:
    rank, n = comm.rank, comm.nranks
    mine, everybody = values(rank), [values(other) for other in range(n)]
    blocks = values(rank, n * COUNT).reshape(n, COUNT)  # block i is for rank i
    all_blocks = [values(other, n * COUNT).reshape(n, COUNT) for other in range(n)]
    result, results = np.zeros(COUNT, np.float32), np.zeros((n, COUNT), np.float32)

    # allreduce: every rank gets the sum (or PROD, MAX, MIN, AVG).
    comm.allreduce(mine, result, nccl.SUM)
    assert np.array_equal(result, sum(everybody))
    # The result may replace what is sent.
    in_place = mine.copy()
    comm.allreduce(in_place, in_place, nccl.MAX)
    assert np.array_equal(in_place, np.maximum.reduce(everybody))

    # reduce: only the root gets it; others need no buffer.
    comm.reduce(mine, result if rank == ROOT else None, nccl.AVG, root=ROOT)
    if rank == ROOT:
        assert np.array_equal(result, np.mean(everybody, axis=0))

    # broadcast: from the root to all.
    comm.broadcast(mine if rank == ROOT else None, result, root=ROOT)
    assert np.array_equal(result, values(ROOT))

    # allgather: everybody's values side by side, on every rank.
    comm.allgather(mine, results)
    assert np.array_equal(results, everybody)

    # gather: the same at the root alone; scatter: the other way round.
    comm.gather(mine, results if rank == ROOT else None, root=ROOT)
    comm.scatter(blocks if rank == ROOT else None, result, root=ROOT)
    assert np.array_equal(result, all_blocks[ROOT][rank])

    # reduce_scatter: rank i gets the sum of everybody's block i.
    comm.reduce_scatter(blocks, result, nccl.SUM)
    assert np.array_equal(result, sum(other[rank] for other in all_blocks))

    # alltoall: block i goes to rank i, and rank i's block for this rank comes as block i.
    comm.alltoall(blocks, results)
    assert np.array_equal(results, [other[rank] for other in all_blocks])


if __name__ == "__main__":
    virtual.run(main, ranks=RANKS)
    print(f"{RANKS} ranks have the results of NumPy")
