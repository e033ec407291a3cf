"""The fault matrix: every fault, number of ranks, kind of operation and phase, and whether all survivors name rank and class in time."""

import collections
import ctypes
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from attacks import ports
from attacks.machines import Machines

HERE = pathlib.Path(__file__).resolve().parent
WITHIN = 2.0  # seconds from the fault
WITHIN_SILENCE = 8.0  # of a rank that no other evidence tells of: a busy process answers late, too, and is not to be named
CALLS = ("count", "type", "operation", "order")
LINKS = ("cut link", "half-open", "silent host", "slow link")
HEALTHY = ("slow host", "slow link")  # nobody may be named
EXTERNAL = (*LINKS, "slow host", "stuck proxy")  # done to the culprit from outside
FAULTS = ("missing", *CALLS, "stop", "kill", "exit", "kernel", "stuck proxy", "cut link", "half-open", "silent host", "slow link",
          "slow host")
CARRIERS = {"nccl-proxy", "virtual-gpu"}  # threads that carry data to other machines
MODES = ("live", "graph", "group", "message")
OPERATIONS = ("first", "middle", "between")
PHASES = ("init", *OPERATIONS, "split", "shrink", "grow", "destroy")
RANKS = (2, 4, 16, 64)
MOST_PROCESSES = 16  # more ranks share processes, but for the culprit, who has one of its own
SHARED = 9  # ranks of such a process
QUICK = {("missing", 4, "live", "between"), ("count", 4, "live", "first"), ("stop", 4, "group", "middle"),
         ("kill", 4, "message", "between"), ("exit", 2, "graph", "middle"), ("kernel", 2, "live", "between"),
         ("order", 2, "live", "between"), ("kill", 4, "live", "split"), ("missing", 4, "live", "split"), ("stop", 4, "live", "shrink"),
         ("stop", 2, "live", "first"), ("missing", 4, "live", "init"), ("stop", 4, "live", "init"), ("missing", 4, "live", "grow"),
         ("stuck proxy", 4, "live", "between"), ("cut link", 4, "live", "middle"), ("half-open", 2, "message", "between"),
         ("silent host", 4, "live", "middle"), ("slow link", 2, "live", "middle")}
VERDICT = re.compile(r"stands still: ranks? (\d+) \([^)]*\) (.*)")
ERROR = re.compile(r"^ERROR ([0-9.]+) (\d+) (.*)$", re.M)
REASONS = {"missing": "has not (called|come|joined)", "stop": "is stopped", "kernel": "has not come to it",
           "stuck proxy": "has a stuck proxy", "silent host": "does not answer"}
HEALTHY_TURNS = {"slow link": 3, "slow host": 150}
HEALTHY_SECONDS = 60.0
STOOD_STILL = 0.5  # seconds without a core that make a relay no slow link but one that stands still
TRIALS = 3


def last_of(culprit: int, ranks: int) -> int:
    """Who joins last where the culprit's fault comes before all have joined."""
    return ranks - 1 if culprit != ranks - 1 else 0


@dataclasses.dataclass
class Cell:
    fault: str
    ranks: int
    mode: str
    phase: str
    in_namespaces: bool = False  # each process on a machine of its own

    @property
    def culprit(self) -> int:
        return 0 if self.phase == "shrink" and self.ranks > 2 else self.ranks // 2

    def key(self) -> tuple:
        return self.fault, self.ranks, self.mode, self.phase

    def name(self) -> str:
        return "/".join(map(str, self.key())) + ("/machines" if self.in_namespaces else "")

    def has_machines(self) -> bool:
        """Each process as if it had a machine of its own."""
        return self.fault in EXTERNAL or self.in_namespaces

    def why_not(self) -> str:
        """Why there is no such cell; empty: there is."""
        operates = self.phase in OPERATIONS
        if self.in_namespaces and self.fault in ("cut link", "half-open", "slow link"):
            return "a wire carries all of a machine's links: links are cut by the relay"
        if not operates and self.mode != "live":
            return "calls other than operations are the same in every kind of operation"
        if self.fault in CALLS and not operates:
            return "only operations have a count, a type, an operation and an order"
        if self.fault == "order" and (self.mode != "live" or self.phase == "middle"):
            return "an order of two different operations is its own kind of operation, between others or first"
        if self.fault in ("type", "operation") and self.mode == "message":
            return "a message is bytes: it has no operation, and fits a receive of another type"
        if self.fault == "kernel" and not operates:
            return "a kernel before a call that is not queued on a stream holds up nothing"
        if self.fault in ("cut link", "half-open", "slow link", "stuck proxy") and not operates:
            return "proxies and their links carry operations; other calls go by the bootstrap's connections"
        if self.fault == "stuck proxy" and self.phase == "first":
            return "proxies start with the first operation"
        if self.fault in HEALTHY and self.phase != "middle":
            return "what is slow is so in the middle of several operations"
        if self.fault == "silent host" and self.phase in ("init", "destroy"):
            return "of a host that is silent before it has joined, or when nobody waits for it, nobody can tell"
        if self.phase == "shrink" and self.ranks == 2:
            return "of two ranks none is left to wait when one is excluded and one does not come"
        if self.phase == "destroy" and self.fault in ("missing", "stop"):
            return "nobody waits in ncclCommDestroy"
        return ""

    def survivors(self) -> list:
        away = {self.culprit}
        if self.phase == "shrink":
            away.add(self.ranks - 1)  # left out: it is not in the call
        if self.fault in CALLS or self.fault in ("cut link", "half-open", "slow link", "slow host"):
            away = set()  # the culprit hears it, too
        newcomer = 1 if self.phase == "grow" else 0
        return [rank for rank in range(self.ranks + newcomer) if rank not in away]

    def is_named(self, rank: int, text: str) -> bool:
        """Does what a survivor has seen name rank and class?"""
        errors = ERROR.findall(text)
        if self.fault in ("kill", "exit"):
            # Who destroys after the others have gone may have had all it needs.
            if self.phase == "destroy" and "DESTROYED" in text:
                return True
            return any(code == "6" and re.search(rf"\brank {self.culprit}\b", words) for _, code, words in errors)
        if self.fault in CALLS:
            # The log of one whose own part of a message is done, and whose program ends.
            if re.search(rf"NCCL WARN [^\n]*\brank {self.culprit}\b", text):
                return True
            return any(code == "5" and re.search(rf"\brank {self.culprit}\b", words) for _, code, words in errors)
        if self.fault in HEALTHY:
            return "RIGHT" in text
        verdicts = VERDICT.findall(text)
        if self.fault in ("cut link", "half-open"):
            ends = [(int(rank), re.match(r"cannot reach rank (\d+): its link", why)) for rank, why in verdicts]
            return any(found and self.culprit in (rank, int(found[1])) for rank, found in ends)
        reason = REASONS[self.fault]
        if self.fault == "stop" and self.in_namespaces:
            reason += "|does not answer"  # nobody sees the processes of other machines
        if self.fault == "silent host" and self.in_namespaces:
            if any(code == "6" and re.search(rf"\brank {self.culprit}\b", words) for _, code, words in errors):
                return True  # the bootstrap's link was given up
        if rank == self.ranks:
            reason += "|has not joined"  # all that a newcomer knows of others
        return any(int(named) == self.culprit and re.match(reason, why) for named, why in verdicts)

    def processes(self) -> list:
        """The ranks of each."""
        everyone = list(range(self.ranks + (1 if self.phase == "grow" else 0)))
        if self.ranks <= MOST_PROCESSES:
            return [[rank] for rank in everyone]
        others = [rank for rank in everyone if rank != self.culprit]
        return [[self.culprit]] + [others[i:i + SHARED] for i in range(0, len(others), SHARED)]


def all_cells(in_namespaces: bool) -> list:
    cells = (Cell(*key, in_namespaces) for key in itertools.product(FAULTS, RANKS, MODES, PHASES))
    return [cell for cell in cells if not cell.why_not()]


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def relay_library(folder: pathlib.Path) -> pathlib.Path:
    made = folder / "relay.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "relay.c")], check=True)
    return made


class Run:
    """The processes of a cell, and what is done to them; all are gone when the `with` ends."""

    def __init__(self, library: pathlib.Path, cell: Cell):
        self.cell = cell
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="niccolite_matrix_"))
        self.processes, self.files, self.log_of, self.relay, self.traced = [], [], {}, None, []
        self.machines = Machines(len(cell.processes())) if cell.in_namespaces else None
        self.known = {}  # by file: its size, and its text when it had that
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "NICCOLITE_"))}
        environment |= {"NICCOLITE_DEVICES": f"virtual:{cell.ranks + 1}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO",
                        "NCCL_RAS_ENABLE": "0", "NCCL_SET_THREAD_NAME": "1"}
        if cell.in_namespaces:
            environment["NCCL_SOCKET_IFNAME"] = "eth"
        elif cell.fault in LINKS:
            self.relay = subprocess.Popen([sys.executable, str(HERE / "relay.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          text=True)
            environment |= {"LD_PRELOAD": str(relay_library(self.folder)), "FAULT_RELAY": self.relay.stdout.readline().strip()}
        for number, ranks in enumerate(cell.processes()):
            of_process = {"FAULT_RANK": str(ranks[0])}
            if cell.has_machines():
                of_process["NCCL_HOSTID"] = f"machine{number}"
            log = self.folder / f"log{number}"
            self.log_of |= {rank: log for rank in ranks}
            self.files.append(open(log, "w"))
            command = [sys.executable, str(HERE / "cell.py"), str(library), str(self.folder), ",".join(map(str, ranks)), str(cell.ranks),
                       str(cell.culprit), cell.fault, cell.mode, cell.phase]
            options = {"stdin": subprocess.DEVNULL, "stdout": self.files[-1], "stderr": subprocess.STDOUT, "env": environment | of_process}
            start = functools.partial(self.machines.start, number) if self.machines else subprocess.Popen
            self.processes.append(start(command, **options))
            if cell.culprit in ranks:
                self.victim, self.victims_machine = self.processes[-1], number

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for thread in self.traced:
            os.waitpid(thread, 0x40000000)  # __WALL: else its process would not end
        for process in self.processes:
            process.wait()
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        if self.machines:
            self.machines.close()
        for file in self.files:
            file.close()
        shutil.rmtree(self.folder)

    def read(self, file: pathlib.Path) -> str:
        size = file.stat().st_size if file.exists() else 0
        if self.known.get(file, (-1, ""))[0] != size:
            self.known[file] = (size, file.read_text(errors="replace") if size else "")
        return self.known[file][1]

    def output_of(self, rank: int) -> str:
        return self.read(self.folder / f"output{rank}")

    def text_of(self, rank: int) -> str:
        return self.output_of(rank) + self.read(self.log_of[rank])

    def tell_relay(self, what: str, listening: list) -> float:
        """For how long the relay stood still at most, so far."""
        self.relay.stdin.write(json.dumps({"what": what, "rank": self.cell.culprit, "ports": listening}) + "\n")
        self.relay.stdin.flush()
        return float(self.relay.stdout.readline())

    def stop_proxy(self) -> None:
        """All threads that carry data to other machines, as a debugger would: the others of the process go on. Workers of virtual GPUs
        do what the proxy's thread does, if that one is stopped alone."""
        seize, interrupt = 0x4206, 0x4207
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        names = set()
        for task in pathlib.Path(f"/proc/{self.victim.pid}/task").iterdir():
            name, thread = (task / "comm").read_text().strip(), int(task.name)
            if name not in CARRIERS:
                continue
            if ptrace(seize, thread, None, None) != 0:
                raise OSError(ctypes.get_errno(), f"cannot stop {name}")
            self.traced.append(thread)
            if ptrace(interrupt, thread, None, None) != 0:
                raise OSError(ctypes.get_errno(), f"cannot stop {name}")
            names.add(name)
        if names != CARRIERS:
            raise OSError(f"the culprit has no thread {' and no '.join(CARRIERS - names)}")

    def apply(self) -> None:
        fault = self.cell.fault
        if fault == "stuck proxy":
            self.stop_proxy()
        elif fault == "silent host" and self.machines:
            self.machines.unplug(self.victims_machine)
        elif fault in LINKS:
            what = {"cut link": "cut", "half-open": "half", "silent host": "silent", "slow link": "slow"}[fault]
            self.tell_relay(what, ports.listening(self.victim.pid))
        (self.folder / "applied").touch()

    def go_on(self) -> None:
        """A slow host gets a core for two fifths of the time."""
        if self.cell.fault == "slow host" and self.victim.poll() is None:
            self.victim.send_signal(signal.SIGSTOP)
            time.sleep(0.15)
            self.victim.send_signal(signal.SIGCONT)
            time.sleep(0.1)


def run(library: pathlib.Path, cell: Cell) -> tuple:
    """Milliseconds until all survivors had named rank and class (None: not in time), and what is wrong."""
    for trial in range(TRIALS):
        with Run(library, cell) as running:
            milliseconds, wrong = judge(running, cell)
            if not wrong or cell.fault != "slow link":
                break
            stood_still = running.tell_relay("pass", [])
            wrong += f" (the relay stood still for {stood_still:.2f} s)"
            if stood_still < STOOD_STILL:
                break
            print(f"{cell.name()}: again, because the relay stood still for {stood_still:.2f} s", flush=True)
    return milliseconds, wrong


def fault_time(running: Run, cell: Cell):
    begun = now()
    while now() - begun < 120:
        found = re.search(r"^FAULT ([0-9.]+)", running.output_of(cell.culprit), re.M)
        if found:
            return float(found[1])
        time.sleep(0.01)
    return None


def judge(running: Run, cell: Cell) -> tuple:
    fault = now()
    if (cell.fault, cell.phase) != ("missing", "init"):
        fault = fault_time(running, cell)
        if fault is None:
            return None, "it never came to the fault"
        if cell.fault in EXTERNAL:
            running.apply()
            fault = now()
    else:
        while len(list(running.folder.glob("begin.*"))) < cell.ranks:
            time.sleep(0.01)
        fault = now()
    is_healthy = cell.fault in HEALTHY
    is_silent = cell.fault == "silent host" or (cell.fault == "stop" and cell.in_namespaces)
    within = WITHIN_SILENCE if is_silent else WITHIN
    waiting, last = set(cell.survivors()), fault
    while waiting and now() - fault < (HEALTHY_SECONDS if is_healthy else within + 2.5):
        for rank in list(waiting):
            if cell.is_named(rank, running.text_of(rank)):
                waiting.discard(rank)
                last = now()
        running.go_on()
        time.sleep(0.01)
    texts = {rank: running.text_of(rank) for rank in cell.survivors()}
    wrong = [f"rank {rank} has a wrong result" for rank, text in texts.items() if re.search("^WRONG", text, re.M)]
    if is_healthy:
        wrong += [f"rank {rank} says: {line[:600]}" for rank, text in texts.items() for line in text.splitlines()
                  if "stands still" in line or line.startswith("ERROR")]
    if waiting:
        rank = min(waiting)
        seen = [line[:200] for line in texts[rank].splitlines() if "stands still" in line or line.startswith("ERROR")]
        wrong.append(f"ranks {sorted(waiting)} do not name it; rank {rank} has: {seen[-1] if seen else 'nothing'}")
        return None, "; ".join(wrong)
    if last - fault > within and not is_healthy:
        wrong.append(f"named after {last - fault:.1f} s")
    return (last - fault) * 1e3, "; ".join(wrong)


def cell_text(fault: str, phase: str, of_phase: list) -> str:
    if not of_phase:
        return "–"
    right = [milliseconds for milliseconds, wrong in of_phase if not wrong]
    text = f"{len(right)} of {len(of_phase)}"
    return text if not right or fault in HEALTHY else f"{text}, {max(right):.0f} ms"


def table_of(results: list) -> str:
    """A row a fault and number of ranks: for each phase how many kinds of operation were right, and the longest time."""
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for cell, milliseconds, wrong in results:
        rows[cell.fault, cell.ranks][cell.phase].append((milliseconds, wrong))
    lines = ["| fault | ranks | " + " | ".join(PHASES) + " |", "|---|---|" + "---|" * len(PHASES)]
    for (fault, ranks), phases in rows.items():
        texts = [cell_text(fault, phase, phases.get(phase, [])) for phase in PHASES]
        lines.append(f"| {fault} | {ranks} | " + " | ".join(texts) + " |")
    absent = collections.defaultdict(set)
    in_namespaces = any(cell.in_namespaces for cell, _, _ in results)
    for key in itertools.product(FAULTS, RANKS, MODES, PHASES):
        why = Cell(*key, in_namespaces).why_not()
        if why and key[2] == "live":
            absent[why].add((key[0], key[3]))
    lines += ["", "–: there is no such cell."]
    for why, which in absent.items():
        of = collections.defaultdict(list)
        for fault in FAULTS:
            phases = tuple(phase for phase in PHASES if (fault, phase) in which)
            if phases:
                of[phases].append(fault)
        named = "; ".join(f"{', '.join(faults)} at {', '.join(phases)}" for phases, faults in of.items())
        lines.append(f"- {named}: {why}.")
    return "\n".join(lines)
