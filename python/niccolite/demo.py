"""``python -m niccolite.demo [ranks]``: all-reduces NumPy arrays on virtual GPUs, and checks them."""

from __future__ import annotations

import sys
import time

import niccolite


def main() -> int:
    niccolite.use()
    import nccl
    import nccl.core
    import nccl.virtual

    try:
        import numpy
    except ImportError:
        print("the demo needs NumPy: pip install numpy", file=sys.stderr)
        return 1

    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4

    def rank_main(comm: nccl.core.Communicator) -> float:
        x = numpy.arange(1 << 20, dtype=numpy.float32) + comm.rank
        total = numpy.empty_like(x)
        comm.allreduce(x, total, nccl.core.SUM)  # connects
        started = time.perf_counter()
        comm.allreduce(x, total, nccl.core.SUM)
        seconds = time.perf_counter() - started
        expected = numpy.arange(1 << 20, dtype=numpy.float32) * ranks + sum(range(ranks))
        if not numpy.allclose(total, expected):
            raise AssertionError("the sum is wrong")
        return seconds

    nccl.show_versions()
    seconds = max(nccl.virtual.run(rank_main, ranks))
    print(f"\n{ranks} ranks on virtual GPUs summed 4 MiB each in {seconds * 1e3:.1f} ms: correct on every rank")
    return 0


if __name__ == "__main__":
    sys.exit(main())
