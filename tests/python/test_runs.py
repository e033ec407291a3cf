"""nccl.virtual.run() in a program of its own: runs one after the other, and ranks that wait for ever."""

import os
import subprocess
import sys

import nccl.core as nccl
import numpy as np
import pytest
from nccl.virtual import RankError, run


def _told(program, environment=None, file=None):
    """What a program prints, which is given by text as a notebook's cells are, or by a file."""
    if file is not None:
        file.write_text(program)
    settings = {name: value for name, value in os.environ.items() if name != "NICCOLITE_DEVICES"}
    done = subprocess.run([sys.executable, *(["-c", program] if file is None else [file])], capture_output=True,
                          text=True, timeout=120, check=False, env={**settings, **(environment or {})})
    return done.stdout or done.stderr


RUNS = """
import dataclasses, enum, threading
import numpy as np, nccl.core as nccl
from nccl import virtual
from nccl.virtual import run

lock = threading.Lock()  # no process can be sent this, and no function uses it

class Color(enum.Enum):
    RED = 1
    def is_red(self): return self is Color.RED

@dataclasses.dataclass
class Sum:
    value: int
    color: Color = Color.RED
    def doubled(self): return self._times(2)
    @staticmethod
    def times(value, by): return value * by
    def _times(self, by): return Sum.times(self.value, by)

class Wide(Sum):
    def doubled(self): return super().doubled() + offset

offset = 0

def fill(comm):
    return np.full(4, comm.rank)

def main(comm, add=0):
    x = fill(comm)
    comm.allreduce(x, x, nccl.SUM)
    return Wide(int(x[0]) + add)

sums, counts = [], []
for ranks, processes in [(2, True), (2, False), (4, False), (3, True), (1, False), (12, False), (5, True)]:
    sums.append(run(main, ranks, processes=processes)[-1].doubled())
    if not processes and ranks > 1:
        counts.append(len(virtual.devices()))
print([main.__module__, *sums], counts)
by = 3
results = run(lambda comm: (main(comm, add=by), comm.nranks), ranks=2, processes=True)
print(results[1] == (Wide(4), 2), type(results[0][0]) is Wide, results[0][0].color.is_red())
"""


@pytest.mark.parametrize("is_file", [False, True])
def test_runs_of_any_size_follow_each_other(is_file, tmp_path):
    told = _told(RUNS, file=tmp_path / "runs.py" if is_file else None)
    assert told == "['__main__', 2, 2, 12, 6, 0, 132, 20] [2, 4, 12]\nTrue True True\n"


LEFT = """
import numpy as np, nccl.core as nccl
from nccl.virtual import RankError, run
def {name}(comm):
    x = np.full(4, comm.rank)
    comm.allreduce(x, x, nccl.SUM)
{body}
try:
    run({name}, ranks=3)
except RankError as error:
    print(error.rank, error)
"""

ONE_DOES_NOT_CALL = "    if comm.rank != 1: comm.allreduce(x, x, nccl.SUM)"
ONE_DOES_NOT_SPLIT = "    if comm.rank != 1: comm.split(0)"
WRONG_PEER = """    with nccl.group():
        if comm.rank == 0: comm.recv(x, 2)
        if comm.rank == 1: comm.recv(x, 0)"""


@pytest.mark.parametrize(("body", "rank", "waits"), [
    (ONE_DOES_NOT_CALL, 1, ["rank 0 in allreduce (<string>:", "rank 2 in allreduce (<string>:"]),
    (ONE_DOES_NOT_SPLIT, 1, ["rank 0 in split (<string>:", "rank 2 in split (<string>:"]),
    (WRONG_PEER, 2, ["rank 0 in the end of a group (", "rank 1 in the end of a group ("]),
])
def test_a_rank_that_has_returned_is_named_by_those_who_wait(body, rank, waits):
    told = _told(LEFT.format(name="main", body=body))
    assert told.startswith(f"{rank} rank {rank} of 3 failed: its function has returned, and the others wait for ever: ")
    assert all(wait in told for wait in waits) and told.count("\n") == 1


SLOW = """
import threading, time, numpy as np, nccl.core as nccl
from nccl.virtual import run
def main(comm):
    x = np.full(4, comm.rank)
    comm.allreduce(x, x, nccl.SUM)
    if comm.rank == 1: return 1
    if comm.rank == 2: threading.Event().wait(2)
    if comm.rank: comm.send(x, 0)
    else: comm.recv(x, 2)
    return int(x[0])
print(run(main, ranks=3))
"""


def test_a_rank_that_has_returned_disturbs_nobody():
    assert _told(SLOW) == "[3, 1, 3]\n"


TWO_AT_ONCE = """
import threading, numpy as np, nccl.core as nccl
from nccl.virtual import run
together = threading.Barrier(2)
results = []
def main(comm, name):
    if comm.rank == (name == "b"): together.wait()  # the runs' calls come in another order on each rank
    x = np.full(4, comm.rank + 1)
    comm.allreduce(x, x, nccl.SUM)
    return int(x[0])
def one(name): results.append(run(main, ranks=2, args=(name,)))
threads = [threading.Thread(target=one, args=(name,)) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(results, run(lambda comm: run(main, ranks=1, args=("c",)), ranks=2))
"""


def test_two_runs_at_once_do_not_share_devices():
    # 1 device for each rank of both runs, in whatever order they begin
    assert _told(TWO_AT_ONCE) == "[[3, 3], [3, 3]] [[1], [1]]\n"
    assert "other runs use 2 virtual GPUs" in _told(
        "from nccl.virtual import run\nrun(lambda comm: run(lambda inner: 0, ranks=2), ranks=2)",
        {"NICCOLITE_DEVICES": "virtual:3"})


A = "np.ones(4, np.float32)"
MISTAKES = [
    (f"comm.allreduce({A}.astype(np.int16), {A}, nccl.SUM)", "NcclInvalid: sendbuf has dtype int16, which is not communicated. The dtypes are int8,"),
    (f"comm.allreduce({A}.astype(bool), {A}, nccl.SUM)", "NcclInvalid: sendbuf has dtype bool, which"),
    (f"comm.allreduce([1, 2], {A}, nccl.SUM)", "NcclInvalid: sendbuf is of type list, which is no array: pass a NumPy or CuPy array"),
    (f"comm.allreduce({A}, None, nccl.SUM)", "NcclInvalid: recvbuf is None: pass a NumPy"),
    (f"comm.allreduce({A}, {A}.astype(float), nccl.SUM)", "NcclInvalid: Dtype mismatch: sendbuf has dtype float32, recvbuf has dtype float64"),
    (f"comm.allreduce({A}, {A}[:3], nccl.SUM)", "NcclInvalid: Buffer count mismatch: recvbuf has 3 elements, at least 4 are needed"),
    (f"comm.allreduce({A}, {A}, 'sum')", "NcclInvalid: op must be an NcclRedOp, such as nccl.core.SUM, or a CustomRedOp, not of type str"),
    (f"comm.broadcast({A}, {A}, None)", "TypeError: root must be the number of a rank, not of type NoneType"),
    (f"comm.broadcast({A}, {A}, 7)", "NCCLError: InvalidArgument (4): ncclBroadcast : invalid root 7: the communicator has 2 ranks"),
    (f"comm.broadcast({A}, {A}, 2**40)", "NcclInvalid: root is 1099511627776, which is no rank"),
    (f"comm.send({A}, 1.0)", "TypeError: peer must be the number of a rank, not of type float"),
    (f"comm.allreduce({A}, {A}, nccl.SUM) if comm.rank else comm.broadcast({A}, {A}, 0)", "NCCLError: InvalidUsage (5): rank "),
    ("nccl.group_start()", "RuntimeError: the function has returned inside of a group"),
    ("(comm.destroy(), comm.rank)", "NcclInvalid: Cannot get rank: the communicator has been destroyed"),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES, ids=[mistake for mistake, _ in MISTAKES])
def test_mistakes_of_newcomers(mistake, told):
    with pytest.raises(RankError) as caught:
        run(eval(f"lambda comm: {mistake}", {"np": np, "nccl": nccl}), ranks=2)
    assert f"failed: {told}" in str(caught.value)
    assert "ncclGetLastError" not in str(caught.value) and "incompatible function arguments" not in str(caught.value)


@pytest.mark.parametrize(("call", "kind", "told"), [
    (lambda: run(3, ranks=2), TypeError, "function is 3, which cannot be called"),
    (lambda: run(lambda: 0, ranks=2), TypeError, r"run\(\) cannot call <lambda>\(\) with the communicator: too many"),
    (lambda: run(lambda comm, x: 0, ranks=2), TypeError, "missing a required argument: 'x'"),
    (lambda: run(lambda comm, x: 0, ranks=2, args=3), TypeError, "args is of type int; it must be a tuple"),
    (lambda: run(lambda comm: 0, ranks=0), ValueError, "ranks is 0"),
    (lambda: run(lambda comm: 0, ranks=5000), RuntimeError, "5000 virtual GPUs are wanted"),
])
def test_mistakes_in_the_call_of_run(call, kind, told):
    with pytest.raises(kind, match=told):
        call()
