"""Kills ranks at random moments, and looks how the others go on."""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 4
WARM = 10  # rounds after which memory is compared


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Process:
    def __init__(self, library: pathlib.Path, folder: pathlib.Path, device: int, rank: int, number: int, round_: int):
        self.file, self.device = folder / f"output{number}", device
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "NICCOLITE_"))}
        environment |= {"NICCOLITE_DEVICES": f"virtual:{RANKS}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_RAS_ENABLE": "0",
                        "ROUND": str(round_)}
        with open(self.file, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "survivor.py"), str(library), str(folder), str(device), str(RANKS), str(rank)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def rounds(self) -> list:
        text = self.file.read_text(errors="replace")
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines() if line.startswith("{")]

    def of_round(self, round_: int):
        return next((each for each in self.rounds() if each.get("round") == round_), None)

    def failure(self) -> str:
        failed = [each["failed"] for each in self.rounds() if "failed" in each]
        return failed[0] if failed else f"ended with {self.process.returncode}" if self.process.poll() is not None else ""


def percentile(values: list, part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def wait_for_round(processes: list, round_: int) -> str:
    deadline = now() + 30
    while now() < deadline:
        if all(process.of_round(round_) for process in processes):
            return ""
        failed = [(number, process.failure()) for number, process in enumerate(processes) if process.failure()]
        if failed:
            time.sleep(0.5)  # others may tell why
            return "; ".join(f"process {number}: {process.failure()}" for number, process in enumerate(processes)
                             if process.failure())
        time.sleep(0.003)
    return "stands still"


def run(library: pathlib.Path, count: int, limit: float, seed: int) -> int:
    chance, folder = random.Random(seed), pathlib.Path(tempfile.mkdtemp(prefix="niccolite_kills_"))
    begun, numbers = time.monotonic(), iter(range(10**9))
    processes = [Process(library, folder, rank, rank, next(numbers), 0) for rank in range(RANKS)]
    keeper = processes[1]  # never killed: what it has open is compared
    known, shrunk, grown, problem, done = [], [], [], wait_for_round(processes, 0), 0
    while not problem and done < count and time.monotonic() - begun < limit - 5:
        victim = chance.choice([process for process in processes if process is not keeper])
        # Started before it is needed: what is measured is the library.
        newcomer = Process(library, folder, victim.device, -1, next(numbers), done + 1)
        time.sleep(0.15 + chance.random() * 0.05)
        victim.process.kill()
        killed = now()
        victim.process.wait()
        survivors = [process for process in processes if process is not victim]
        processes = survivors + [newcomer]
        done += 1
        problem = wait_for_round(processes, done)
        if not problem:
            rounds = [process.of_round(done) for process in survivors]
            known += [(each["known"] - killed) * 1e3 for each in rounds]
            shrunk += [(each["shrunk"] - killed) * 1e3 for each in rounds]
            grown += [(each["whole"] - killed) * 1e3 for each in rounds]
    (folder / "end").touch()
    for process in processes:
        try:
            process.process.wait(10)
        except subprocess.TimeoutExpired:
            problem = problem or "a process does not end"
            process.process.kill()
    rounds = [each for each in keeper.rounds() if "round" in each]
    print(f"{done} kills of {RANKS} ranks, seed {seed}, {time.monotonic() - begun:.0f} s")
    for name, values in (("death known", known), ("shrunk, and its first result", shrunk), ("grown, and its first result", grown)):
        print(f"  {name + ', ms after the kill:':<48} median {percentile(values, 0.5):.1f}, 99 % {percentile(values, 0.99):.1f}, "
              f"most {max(values, default=0):.1f}")
    if len(rounds) > WARM:
        for what in ("descriptors", "threads", "mappings", "kilobytes"):
            # A rank has one or two descriptors more than another, and its rank changes with each death; connections that end
            # are open for a moment. So a leak shows where every late round has more than any early one.
            early, late = max(each[what] for each in rounds[WARM // 2:WARM + 1]), min(each[what] for each in rounds[-WARM // 2:])
            print(f"  {what} of a process that was never killed: at most {early} until round {WARM}, "
                  f"at least {late} in the last {WARM // 2}")
            if what in ("descriptors", "threads") and late > early:
                problem = problem or f"{what} grow"
    print(f"WRONG after {done} kills: {problem}" if problem else "all results right")
    shutil.rmtree(folder)
    return 1 if problem else 0
