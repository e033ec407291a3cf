"""The fault matrix: every fault, number of ranks, kind of operation and phase, and whether all survivors name rank and class in time."""

import collections
import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WITHIN = 2.0  # seconds from the fault
CALLS = ("count", "type", "operation", "order")
FAULTS = ("missing", *CALLS, "stop", "kill", "exit", "kernel")
MODES = ("live", "graph", "group", "message")
PHASES = ("first", "middle", "between", "split", "shrink", "destroy")
RANKS = (2, 4, 16)
QUICK = {("missing", 4, "live", "between"), ("count", 4, "live", "first"), ("stop", 4, "group", "middle"),
         ("kill", 4, "message", "between"), ("exit", 2, "graph", "middle"), ("kernel", 2, "live", "between"),
         ("order", 2, "live", "between"), ("kill", 4, "live", "split"), ("missing", 4, "live", "split"), ("stop", 4, "live", "shrink")}
VERDICT = re.compile(r"stands still: rank (\d+) \([^)]*\) (.*)")
ERROR = re.compile(r"^ERROR ([0-9.]+) (\d+) (.*)$", re.M)


@dataclasses.dataclass
class Cell:
    fault: str
    ranks: int
    mode: str
    phase: str

    @property
    def culprit(self) -> int:
        return 0 if self.phase == "shrink" and self.ranks > 2 else self.ranks // 2

    def key(self) -> tuple:
        return self.fault, self.ranks, self.mode, self.phase

    def name(self) -> str:
        return "/".join(map(str, self.key()))

    def makes_sense(self) -> bool:
        operates = self.phase in ("first", "middle", "between")
        if self.fault in CALLS and not operates:
            return False
        if self.fault == "order":
            return self.mode == "live" and self.phase != "middle"
        if self.fault in ("type", "operation") and self.mode == "message":
            return False  # bytes are bytes
        if self.fault == "kernel" and not operates:
            return False
        if not operates and self.mode != "live":
            return False  # the call is the same
        if self.phase == "shrink" and self.ranks == 2:
            return False
        return not (self.phase == "destroy" and self.fault in ("missing", "stop"))  # nobody waits for it

    def survivors(self) -> list:
        away = {self.culprit}
        if self.phase == "shrink":
            away.add(self.ranks - 1)  # left out: it is not in the call
        if self.fault in CALLS:
            away = set()  # the culprit hears it, too
        return [rank for rank in range(self.ranks) if rank not in away]

    def is_named(self, text: str) -> bool:
        """Does what a survivor has seen name rank and class?"""
        errors = ERROR.findall(text)
        if self.fault in ("kill", "exit"):
            # Who destroys after the others have gone may have had all it needs.
            if self.phase == "destroy" and "DESTROYED" in text:
                return True
            return any(code == "6" and re.search(rf"\brank {self.culprit}\b", words) for _, code, words in errors)
        if self.fault in CALLS:
            return any(code == "5" and re.search(rf"\brank {self.culprit}\b", words) for _, code, words in errors)
        reasons = {"missing": "has not c", "stop": "is stopped", "kernel": "has not come to it"}
        return any(int(rank) == self.culprit and why.startswith(reasons[self.fault])
                   for rank, why in VERDICT.findall(text))


def all_cells() -> list:
    cells = (Cell(*key) for key in itertools.product(FAULTS, RANKS, MODES, PHASES))
    return [cell for cell in cells if cell.makes_sense()]


def run(library: pathlib.Path, cell: Cell) -> tuple:
    """Milliseconds until all survivors had named rank and class (None: not in time), and what is wrong."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="niccolite_matrix_"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "NICCOLITE_"))}
    environment |= {"NICCOLITE_DEVICES": f"virtual:{cell.ranks}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO",
                    "NCCL_RAS_ENABLE": "0"}
    processes, files = [], []
    try:
        for rank in range(cell.ranks):
            files.append(open(folder / f"output{rank}", "w"))
            processes.append(subprocess.Popen(
                [sys.executable, str(HERE / "cell.py"), str(library), str(folder), str(rank), str(cell.ranks),
                 str(cell.culprit), cell.fault, cell.mode, cell.phase],
                stdin=subprocess.DEVNULL, stdout=files[-1], stderr=subprocess.STDOUT, env=environment))
        return judge(folder, cell, processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for file in files:
            file.close()
        shutil.rmtree(folder)


def judge(folder: pathlib.Path, cell: Cell, processes: list) -> tuple:
    def text_of(rank: int) -> str:
        return (folder / f"output{rank}").read_text(errors="replace")

    def now() -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    begun, fault, waiting = now(), None, set(cell.survivors())
    while fault is None and now() - begun < 60:
        found = re.search(r"^FAULT ([0-9.]+)", text_of(cell.culprit), re.M)
        fault = float(found[1]) if found else None
        time.sleep(0.01)
    if fault is None:
        return None, "it never came to the fault"
    last = fault
    while waiting and now() - fault < WITHIN + 2.5:
        for rank in list(waiting):
            if cell.is_named(text_of(rank)):
                waiting.discard(rank)
                last = now()
        time.sleep(0.01)
    texts = {rank: text_of(rank) for rank in cell.survivors()}
    wrong = [f"rank {rank} has a wrong result" for rank, text in texts.items() if re.search("^WRONG", text, re.M)]
    if waiting:
        rank = min(waiting)
        seen = [line[:160] for line in texts[rank].splitlines() if "stands still" in line or line.startswith("ERROR")]
        wrong.append(f"ranks {sorted(waiting)} do not name it; rank {rank} has: {seen[-1] if seen else 'nothing'}")
        return None, "; ".join(wrong)
    if last - fault > WITHIN:
        wrong.append(f"named after {last - fault:.1f} s")
    return (last - fault) * 1e3, "; ".join(wrong)


def table_of(results: list) -> str:
    """A row a fault and number of ranks: for each phase how many kinds of operation were named, and the longest time."""
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for cell, milliseconds, wrong in results:
        rows[cell.fault, cell.ranks][cell.phase].append((milliseconds, wrong))
    lines = ["| fault | ranks | " + " | ".join(PHASES) + " |", "|---|---|" + "---|" * len(PHASES)]
    for (fault, ranks), phases in rows.items():
        texts = []
        for phase in PHASES:
            of_phase = phases.get(phase, [])
            right = [milliseconds for milliseconds, wrong in of_phase if not wrong]
            longest = f", {max(right):.0f} ms" if right else ""
            texts.append(f"{len(right)} of {len(of_phase)}{longest}" if of_phase else "")
        lines.append(f"| {fault} | {ranks} | " + " | ".join(texts) + " |")
    return "\n".join(lines)
