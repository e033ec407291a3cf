"""What programs do beside aligned buffers and single calls: odd counts and starts, lists of calls and of messages, several
communicators; in a process per GPU and in threads, in graphs and eagerly, beside another library in the same run."""

import glob
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing

from . import heatmap
from .clients import run_ranks
from .sizes import KIB, MIB

CLIFF = 1.15  # of the time of the aligned neighbour
LAYOUTS = {"processes": lambda n: ["--processes", str(n)], "threads": lambda n: ["-t", str(n)]}
LAUNCHES = ("graph", "eager")
REDUCTIONS = "all_reduce,reduce_scatter,reduce"
MOVES = "all_gather,broadcast,alltoall,gather,scatter,sendrecv"
SIZES = (KIB, 10_000, 1_000_000, 30_000_000)
HUGE = 256 * MIB
SHAPES = ["--starts", "0,1,3", "--extra", "0,1"]


class Group(typing.NamedTuple):
    """Rows that one command measures."""

    name: str
    flags: list
    iterations: int  # of an eager measurement; graphs have a quarter of them if not said, and 5 replays
    environment: dict = {}
    in_graph: typing.Optional[int] = None


def sizes(*values):
    return ["--sizes", ",".join(str(value) for value in values)]


def find_cublas():
    """libcublas.so of the CUDA toolkit, or of a Python interpreter's packages; None where there is none."""
    found = glob.glob("/usr/local/cuda/lib64/libcublas.so.1?")
    script = "import nvidia; print('\\n'.join(nvidia.__path__))"
    interpreters = [sys.executable, shutil.which("python3"), *glob.glob("/opt/*/.venv/bin/python3"), *glob.glob("/opt/*/bin/python3")]
    for interpreter in dict.fromkeys(filter(None, interpreters)):
        run = subprocess.run([interpreter, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for folder in run.stdout.splitlines():
            found += glob.glob(f"{folder}/*/lib/libcublas.so.1?")
    return found[0] if found else None


def beside_groups(cublas):
    """An all-reduce of at most 16 CTAs beside a matrix multiplication."""
    environment = {"NCCL_MAX_CTAS": "16"}
    return [Group(f"beside_{edge}", ["all_reduce", "-d", "bfloat16", "--beside", str(edge), "--cublas", cublas, *sizes(size)], iterations,
                  environment)
            for edge, size, iterations in ((4096, 32 * MIB, 8), (8192, HUGE, 4))]


def groups_of(quick, is_virtual, cublas=None):
    if is_virtual:
        return [Group("shapes", [f"{REDUCTIONS},{MOVES}", "-d", "bfloat16", *sizes(KIB, 10_000), *SHAPES], 4),
                Group("lists_8", ["all_reduce", "-m", "8", *sizes(KIB)], 4),
                Group("messages", ["messages_8,messages_32,alltoallv", *sizes(32 * KIB)], 4),
                Group("communicators_2", ["all_reduce", "--communicators", "2", *sizes(10_000)], 4),
                Group("beside_32", ["all_reduce", "--beside", "32", *sizes(10_000)], 4)]
    types = "bfloat16,float" if quick else "bfloat16,float,int8"
    # Graphs of as many calls as eager measurements have: the replay of a short one takes less time than its launch, where the host
    # is disturbed.
    groups = [Group("reductions", [REDUCTIONS, "-d", types, "-o", "sum" if quick else "sum,avg", *sizes(*SIZES), *SHAPES], 20, in_graph=20),
              Group("moves", [MOVES, "-d", "bfloat16" if quick else "bfloat16,float,int8", *sizes(*SIZES), *SHAPES], 20, in_graph=20)]
    if not quick:
        # Reading results of this size back takes longer than all the rest: only what the sizes below do not show.
        groups.append(Group("huge", [f"{REDUCTIONS},{MOVES}", "-d", "bfloat16", *sizes(HUGE), "--starts", "0,1", "--extra", "0,1"], 4))
    for calls in (8, 64, 200):
        groups.append(Group(f"lists_{calls}", ["all_reduce,all_gather,reduce_scatter,broadcast", "-d", "bfloat16", "-m", str(calls),
                                               *sizes(KIB, 16 * KIB, 256 * KIB)], 32))
    groups.append(Group("messages", ["messages_8,messages_32,alltoallv,sendrecv", "-d", "uint8",
                                     *sizes(2 * KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB)], 40))
    # Displacements of an odd number of bytes: few of the blocks are aligned alike at both ends.
    groups.append(Group("uneven", ["alltoallv", "-d", "uint8", *sizes(64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB), "--starts", "0,1",
                                   "--extra", "0,1"], 20))
    for communicators in (1, 2, 3):
        groups.append(Group(f"communicators_{communicators}", ["all_reduce,all_gather", "-d", "bfloat16", "--communicators",
                                                               str(communicators), *sizes(16 * KIB, 2 * MIB, 4 * MIB, 6 * MIB, 32 * MIB)], 20))
    return groups + (beside_groups(cublas) if cublas else [])


def measure(checks, gpus, other, quick, is_virtual, only_layout=None, shares_gpus=False):
    fixed = ["--out-of-place", "-w", "3"]
    beside = ["--vs", other, "--rounds", "3"] if other else []
    cublas = None if is_virtual else find_cublas()
    if not (cublas or is_virtual):
        print("no cuBLAS was found: no collective is measured beside a matrix multiplication")
    for layout, ranks in LAYOUTS.items():
        if only_layout not in (None, layout):
            continue
        for launch in LAUNCHES:
            for group in groups_of(quick, is_virtual, cublas):
                timing = ["-n", str(group.iterations)]
                if launch == "graph":
                    timing = ["-n", str(group.in_graph or max(1, group.iterations // 4)), "-G", "5"]
                # NVIDIA's library stands still when ranks of several communicators share a GPU.
                is_alone = shares_gpus and "--communicators" in group.flags
                checks.run(f"pattern_{layout}_{launch}_{group.name}",
                           [*group.flags, *ranks(gpus), *timing, *fixed, *([] if is_alone else beside)], group.environment, limit=200)


class Cell(typing.NamedTuple):
    layout: str
    launch: str
    group: str
    collective: str
    type: str
    op: str
    bytes: int  # of the aligned neighbour
    extra: int  # elements that the call has more than it
    start: int
    time_us: float
    ratio: typing.Optional[float]
    beside: typing.Optional[dict] = None  # a matrix multiplication, whose time is in time_us; see beside_of()

    def name(self):
        shape = "".join(f" {sign}{value}" for sign, value in (("start ", self.start), ("+", self.extra)) if value)
        return f"{self.layout} {self.launch} {self.group} {self.collective} {self.type} {self.op} {self.bytes}{shape}"

    def neighbour(self):
        return self._replace(extra=0, start=0, time_us=0, ratio=None, beside=None)


def beside_of(result):
    """{library: microseconds together, of the operation alone, of the product alone}."""
    if result.get("alone") is None:
        return None
    return {name: {"together": round(each["time_us"], 2), "operation": round(each["alone"]["operation_us"], 2),
                   "product": round(each["alone"]["product_us"], 2)}
            for name, each in (("ours", result), ("other", result.get("vs"))) if each}


def cells_of(results):
    """All rows of measure(). An extra element shows in the count, which is one more than that of the row before it."""
    found = []
    for name, document in results.items():
        if not name.startswith("pattern_"):
            continue
        _, layout, launch, group = name.split("_", 3)
        aligned = {}  # by what the row is of: bytes and count without extra
        for row in document["rows"]:
            key = (row["collective"], row["type"], row["op"])
            bytes_, count = aligned.get(key, (None, None))
            is_extra = count is not None and row["count"] == count + 1
            if not is_extra:
                aligned[key] = bytes_, count = row["bytes"], row["count"]
            result = row["out_of_place"]
            found.append(Cell(layout, launch, group, *key, bytes_, row["count"] - count, row["start"], result["time_us"],
                              result.get("ratio"), beside_of(result)))
    return found


def cliffs_of(cells):
    """(cell, time / time of its aligned neighbour) of those that take too long beside it, worst first."""
    neighbours = {cell.neighbour(): cell.time_us for cell in cells if not cell.extra and not cell.start}
    found = [(cell, cell.time_us / neighbours[cell.neighbour()]) for cell in cells if cell.extra or cell.start]
    return sorted((pair for pair in found if pair[1] > CLIFF), key=lambda pair: -pair[1])


def print_found(cells):
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    behind = sorted((cell for cell in cells if cell.ratio is not None and cell.ratio < 1), key=lambda cell: cell.ratio)
    if ratios:
        print(f"\n{len(ratios)} cells, NCCL's time / ours: median {statistics.median(ratios):.2f}, {len(behind)} below 1.0")
        for cell in behind[:40]:
            print(f"  {cell.ratio:.2f} {cell.time_us:>9.1f} us  {cell.name()}")
    for cell in cells:
        for name, times in (cell.beside or {}).items():
            print(f"  {cell.name()}, {name}: {times['together']:.1f} us beside a product; alone {times['operation']:.1f}, "
                  f"the product {times['product']:.1f}")
    cliffs = cliffs_of(cells)
    print(f"\n{len(cliffs)} of {sum(1 for cell in cells if cell.extra or cell.start)} shapes take more than {CLIFF} of the time "
          "of their aligned neighbour")
    for cell, times in cliffs[:40]:
        print(f"  {times:.2f} {cell.time_us:>9.1f} us  {cell.name()}")


def document_of(cells):
    """What is kept: numbers short enough to compare by eye."""
    rows = [{**cell._asdict(), "time_us": round(cell.time_us, 2), "ratio": cell.ratio and round(cell.ratio, 3)} for cell in cells]
    return {"schema": "niccolite-patterns-1", "cells": rows}


# ---- the same through PyTorch

def measure_torch(library, gpus, seconds):
    """{what: {"niccolite": us, "nvidia": us}}, the least of two runs of each; empty where there is no PyTorch."""
    times = {}
    if importlib.util.find_spec("torch") is None:
        return times
    begin = time.monotonic()
    for run, (name, used) in enumerate((("niccolite", library), ("nvidia", None)) * 2):
        spent = time.monotonic() - begin
        left = (seconds - spent) / (2 - run % 2)
        if run == 2 and 2.2 * spent > seconds:  # both again, or none
            break
        with tempfile.TemporaryDirectory() as log:
            results = run_ranks("torch_patterns.py", [], gpus, used, left, log)
        if any(status != 0 for status, _ in results):
            print(f"FAILED torch_patterns.py with {name}: " + "; ".join(line for _, text in results for line in text.splitlines()[-3:]))
        for line in results[0][1].splitlines():
            if line.startswith("TIME "):
                found = json.loads(line[5:])
                of = times.setdefault(found["name"], {})
                of[name] = min(found["us"], of.get(name, found["us"]))
    return times


def print_torch(times):
    print(f"\n{'through PyTorch, eager, a process a GPU':<64} {'NCCL':>9} {'ours':>9}")
    for name, found in times.items():
        nvidia, ours = found.get("nvidia"), found.get("niccolite")
        ratio = f"{nvidia / ours:>7.2f}" if nvidia and ours else ""
        print(f"{name:<64} {nvidia or '-':>9} {ours or '-':>9} {ratio}")


# ---- the picture

PLAIN_GROUPS = ("reductions", "moves", "shapes")  # the others are in the labels


def draw(cells, title):
    """An SVG: layouts, launches and starts across; collectives and ranges of sizes down."""
    rows, columns, fields = {}, {}, {}
    for cell in cells:
        number, band = heatmap.band_of(cell.bytes)
        row = (cell.group, cell.collective, number)
        group = "" if cell.group in PLAIN_GROUPS else f" ({cell.group})"
        rows[row] = f"{cell.collective} {band}{group}"
        column = (cell.layout, cell.launch, cell.start)
        columns[column] = (cell.layout, cell.launch, f"start {cell.start}")
        fields.setdefault((row, column), []).append(cell.ratio)
    groups = list(dict.fromkeys(cell.group for cell in cells))
    rows = dict(sorted(rows.items(), key=lambda item: (groups.index(item[0][0]), item[0][1:])))
    return heatmap.draw(title, rows, dict(sorted(columns.items())), fields)
