"""nccl.virtual.run() in a program of its own: runs one after the other, and ranks that wait for ever."""

import os
import subprocess
import sys

import pytest


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
