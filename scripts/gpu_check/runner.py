"""Runs `niccolite perf`, keeps its JSON documents, and counts what passed."""

import datetime
import json
import os
import subprocess
import sys
import time

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
MOVES = ("all_gather", "broadcast", "alltoall", "gather", "scatter", "sendrecv", "hypercube")
# Of launchers, by which `niccolite perf` knows that it is one process of several (cli/perf/launch.cc).
LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_PROCID",
                      "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                      "RANK", "WORLD_SIZE", "LOCAL_RANK")
RANKS = {"threads": lambda n: ["-t", str(n)],
         "one_thread": lambda n: ["-g", str(n)],
         "processes": lambda n: ["--processes", str(n)]}


def collectives_of(names, ranks):
    """The names as one argument; hypercube only where there is one."""
    is_cube = ranks & (ranks - 1) == 0
    return ",".join(name for name in names if is_cube or name != "hypercube")


class Checks:
    def __init__(self, niccolite, output, seconds):
        self.niccolite, self.output = niccolite, output
        self.passed, self.failed, self.results = 0, [], {}
        self.texts = {}  # what the commands printed
        self.deadline = time.monotonic() + seconds
        # Each run is one by itself, whatever has started this script.
        self.environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
        # NVLink multicast can put a shared machine's GPUs out of service; see docs/perf.md.
        self.environment["NCCL_NVLS_ENABLE"] = "0"

    def run(self, name, flags, environment=None, limit=150):
        """Returns the JSON document of one `niccolite perf`, or None when it left none."""
        path = self.output / f"{name}.json"
        path.unlink(missing_ok=True)
        command = [str(word) for word in (self.niccolite, "perf", *flags, "-T", "30", "-J", path)]
        begin = time.monotonic()
        status, text = self._execute(command, environment or {}, min(limit, self.deadline - begin))
        seconds = time.monotonic() - begin
        self.texts[name] = text
        document = json.loads(path.read_text()) if path.exists() else None
        rows = len(document["rows"]) if document else 0
        is_right = status == 0 and document is not None and document["wrong"] == 0 and rows > 0
        self._report(name, is_right, f"{rows:>5} rows {seconds:>6.1f} s", command, status, text)
        if document:
            self.results[name] = document
        return document

    def run_program(self, name, command, limit=60):
        """Returns what another program of the build printed, or None when it failed."""
        command = [str(word) for word in command]
        begin = time.monotonic()
        status, text = self._execute(command, {}, min(limit, self.deadline - begin))
        self._report(name, status == 0, f"{'':>10} {time.monotonic() - begin:>6.1f} s", command, status, text)
        return text if status == 0 else None

    def _report(self, name, is_right, what, command, status, text):
        print(f"{'ok    ' if is_right else 'FAILED'} {name:<36} {what}", flush=True)
        if is_right:
            self.passed += 1
            return
        self.failed.append(name)
        print(f"       command: {' '.join(command)}\n       status {status}")
        print("".join(f"       {line}\n" for line in text.splitlines()[-6:]), end="", flush=True)

    def _execute(self, command, environment, limit):
        if limit <= 0:
            return "none: no time left (--limit)", ""
        try:
            done = subprocess.run(command, env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            return f"none: killed after {limit:.0f} s", (error.stdout or b"").decode(errors="replace")

    def verified(self, prefix=""):
        """Rows, results in them (out of place and in place), and wrong elements, over all runs with such names."""
        documents = [document for name, document in self.results.items() if name.startswith(prefix)]
        rows = [row for document in documents for row in document["rows"]]
        results = sum(row[place] is not None for row in rows for place in ("out_of_place", "in_place"))
        return len(rows), results, sum(document["wrong"] for document in documents)

    def summary(self):
        any_document = next(iter(self.results.values()), {})
        rows, results, wrong = self.verified()
        correct = dict(zip(("rows", "results", "wrong"), self.verified("correct_")))
        return {"schema": "niccolite-gpu-check-3",
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "command": sys.argv,
                "machine": any_document.get("machine"),
                "library": any_document.get("run", {}).get("library"),
                "passed": self.passed,
                "failed": self.failed,
                "rows": rows,
                "results": results,
                "wrong": wrong,
                "correctness": correct if correct["rows"] else None}
