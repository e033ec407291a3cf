"""Ranks as threads of one process, on virtual GPUs, without a launcher.

    python examples/python/threads.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual


def main(comm: nccl.Communicator) -> float:
    # A step of data-parallel training: each rank has its own gradients, all take the mean.
    gradients = np.random.default_rng(comm.rank).normal(size=(64, 32))
    comm.allreduce(gradients, gradients, nccl.AVG)
    return float(gradients.sum())


sums = virtual.run(main, ranks=8, progress=True)
assert len(set(sums)) == 1, sums
print("8 threads have the same gradients")
