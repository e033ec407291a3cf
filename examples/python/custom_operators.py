"""Operators of one's own: a factor for each rank, before the sum.

    python examples/python/custom_operators.py
"""

import nccl.core as nccl
import numpy as np
from nccl import virtual

RANKS = 4


def weighted_mean(comm: nccl.Communicator) -> None:
    """Ranks that saw more samples count more. The factor is each rank's own."""
    samples = np.array([comm.rank + 1], np.float32)
    total = np.zeros_like(samples)
    comm.allreduce(samples, total, nccl.SUM)
    weight = comm.create_pre_mul_sum(float(samples[0] / total[0]), nccl.FLOAT32)

    loss = np.full(8, comm.rank, np.float32)
    comm.allreduce(loss, loss, weight)
    assert np.allclose(loss, np.average(range(comm.nranks), weights=range(1, comm.nranks + 1)))
    weight.close()  # or by the communicator's end


def factors_of_all_kinds(comm: nccl.Communicator) -> None:
    """A Python number or a NumPy array of one element, which are read now. With CuPy or PyTorch also one element of
    the GPU's memory, which every operation reads when it runs."""
    values, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    for operator in [
        comm.create_pre_mul_sum(0.5, nccl.FLOAT32),  # without the type it would be float64
        comm.create_pre_mul_sum(np.array([0.5], np.float32)),
    ]:
        comm.allreduce(values, out, operator)
        assert (out == comm.nranks / 2).all()
        operator.close()


def main(comm: nccl.Communicator) -> None:
    weighted_mean(comm)
    factors_of_all_kinds(comm)


if __name__ == "__main__":
    virtual.run(main, ranks=RANKS)
    print(f"{RANKS} ranks have weighted their values")
