"""``python -m niccolite._run_schedule FILE``: the process of its own in which Algorithm.run() runs an algorithm."""

import pathlib
import pickle
import sys
from typing import Any

import niccolite


def main(path: pathlib.Path) -> None:
    """Reads the collective and the inputs from the file, and writes the outputs there."""
    niccolite.use()
    import numpy
    from nccl import core
    from nccl.virtual import run

    collective, root, inputs = pickle.loads(path.read_bytes())

    def rank_main(comm: core.Communicator) -> Any:
        send = numpy.ascontiguousarray(inputs[comm.rank])
        n = comm.nranks
        if collective == "all_reduce":
            comm.allreduce(send, received := numpy.empty_like(send), core.SUM)
        elif collective == "reduce":
            comm.reduce(send, received := numpy.empty_like(send), core.SUM, root=root)
        elif collective == "broadcast":
            comm.broadcast(send, received := numpy.empty_like(send), root=root)
        elif collective == "all_gather":
            comm.allgather(send, received := numpy.empty(send.size * n, send.dtype))
        elif collective == "reduce_scatter":
            comm.reduce_scatter(send, received := numpy.empty(send.size // n, send.dtype), core.SUM)
        elif collective == "all_to_all":
            comm.alltoall(send, received := numpy.empty_like(send))
        elif collective == "gather":
            comm.gather(send, received := numpy.empty(send.size * n, send.dtype), root=root)
        else:
            comm.scatter(send, received := numpy.empty(send.size // n, send.dtype), root=root)
        return received

    path.write_bytes(pickle.dumps(run(rank_main, ranks=len(inputs))))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
