"""A job of several processes, one rank each, and what each of them saw."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


class Job:
    """Starts the ranks; every process it started is gone when the `with` ends."""

    def __init__(self, library: pathlib.Path, ranks: list, variables: dict = {}, of_rank: dict = {}):
        """`ranks`: the steps of each. `variables` are set for all, `of_rank[rank]` for one."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="niccolite_attack_"))
        self.processes, self.outputs, self.errors = [], [], []
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "NICCOLITE_"))}
        environment |= {"NICCOLITE_DEVICES": f"virtual:{len(ranks)}", "NCCL_SOCKET_IFNAME": "lo", **variables}
        for rank, steps in enumerate(ranks):
            self.outputs.append(open(self.folder / f"output{rank}", "w+"))
            self.errors.append(open(self.folder / f"errors{rank}", "w+"))
            arguments = [sys.executable, str(HERE / "victim.py"), str(library), str(self.folder), str(rank),
                         str(len(ranks)), json.dumps(steps)]
            self.processes.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.outputs[-1],
                                                   stderr=self.errors[-1], env=environment | of_rank.get(rank, {})))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for file in self.outputs + self.errors:
            file.close()
        shutil.rmtree(self.folder)

    def say(self, name: str) -> None:
        (self.folder / name).touch()

    def wait(self, seconds: float) -> None:
        """Until all have ended, or so long."""
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.005)

    def wait_for(self, step: str, rank: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.processes[rank].poll() is None:
            if any(event["step"] == step for event in self.events(rank)):
                return True
            time.sleep(0.005)
        return any(event["step"] == step for event in self.events(rank))

    def events(self, rank: int) -> list:
        text = (self.folder / f"output{rank}").read_text()
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def said(self, rank: int) -> str:
        return (self.folder / f"errors{rank}").read_text(errors="replace")

    def ending(self, rank: int) -> str:
        code = self.processes[rank].poll()
        if code is None:
            return "hangs"
        return "" if code == 0 else signal.Signals(-code).name if code < 0 else f"status {code}"
