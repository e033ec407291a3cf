"""Memory as programs have it beside one pair of cudaMalloc buffers: every allocator, many buffers in turn, and buffers that are new in
each call, beside another library in the same run; then PyTorch programs with both of its allocators, training steps, and programs that run
out of memory."""

import importlib.util
import json
import os
import statistics
import tempfile
import time
import typing

from . import heatmap
from .clients import libraries_of, run_ranks
from .sizes import GIB, KIB, MIB, as_flag, text_of

PARTS = ("cells", "torch", "training", "oom")
LAYOUTS = {"processes": lambda n: ["--processes", str(n)], "threads": lambda n: ["-t", str(n)]}
COLLECTIVES = {"main": ("all_reduce", "all_gather", "reduce_scatter"),
               "others": ("broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv")}
COMMON = ("malloc", "nccl", "vmm")
RARE = ("async", "vmm-private", "pool", "host", "managed")
ON_HOST = ("host", "managed")  # whose bytes go over PCIe
BUFFERS = ("one", "turn", "new")
IN_TURN = 8
FIRST = 5  # calls on a fresh pair that are timed one by one
LEAST_SECONDS = 20  # that a group needs
GROUP_LIMIT = 200


class Band(typing.NamedTuple):
    """Sizes that one command measures, and operations in a measurement: eager on one pair or several, on fresh pairs, and in a graph."""

    name: str
    sizes: tuple
    eager: int
    fresh: int
    graph: int
    verified: int  # pairs of IN_TURN


BANDS = (Band("small", (64 * KIB, MIB, 16 * MIB), 40, 16, 16, IN_TURN), Band("large", (128 * MIB,), 16, 8, 8, 2), Band("huge", (GIB,), 8, 6, 8, 1))
QUICK_BANDS = (Band("small", (MIB,), 40, 16, 16, IN_TURN), Band("large", (128 * MIB,), 16, 8, 8, 2))
# CPU threads stand in for GPUs: these show only that everything runs.
VIRTUAL_BANDS = (Band("small", (10_000, 300_000), 8, 2, 8, IN_TURN),)


class Group(typing.NamedTuple):
    """Rows that one command measures."""

    layout: str
    launch: str
    allocator: str
    buffers: str
    collectives: str  # a key of COLLECTIVES
    band: Band

    def name(self):
        return f"memory_{self.layout}_{self.launch}_{self.allocator}_{self.buffers}_{self.collectives}_{self.band.name}"

    def cells(self):
        return len(COLLECTIVES[self.collectives]) * len(self.band.sizes)

    def flags(self, ranks):
        pairs = {"one": "1", "turn": str(IN_TURN), "new": "new"}[self.buffers]
        operations = self.band.graph if self.launch == "graph" else self.band.fresh if self.buffers == "new" else self.band.eager
        flags = [",".join(COLLECTIVES[self.collectives]), "-d", "bfloat16", "--out-of-place", "-w", "3", *as_flag(self.band.sizes),
                 *LAYOUTS[self.layout](ranks), "--allocator", self.allocator, "--buffers", pairs, "-n", str(operations)]
        if self.buffers != "one":
            flags += ["-c", str(self.band.verified)]
        if self.launch == "graph":
            flags += ["-G", "5"]
        elif self.buffers == "one":
            flags += ["--first", str(FIRST)]
        return flags


def groups_of(bands):
    """The most important first: eager before graphs, common memory before rare, the main collectives before the others."""
    stages = [("eager", COMMON, "main"), ("eager", RARE, "main"), ("graph", COMMON, "main"), ("eager", COMMON, "others"),
              ("graph", RARE, "main"), ("eager", RARE, "others"), ("graph", COMMON, "others"), ("graph", RARE, "others")]
    found = []
    for launch, allocators, collectives in stages:
        for buffers in BUFFERS:
            if launch == "graph" and buffers == "new":  # a graph has its buffers for life
                continue
            for band in bands:
                for allocator in allocators:
                    if band.name == "huge" and allocator in ON_HOST:
                        continue
                    found += [Group(layout, launch, allocator, buffers, collectives, band) for layout in LAYOUTS]
    return found


class Cell(typing.NamedTuple):
    layout: str
    launch: str
    allocator: str
    buffers: str
    collective: str
    bytes: int
    time_us: float
    other_us: typing.Optional[float]
    ratio: typing.Optional[float]
    wrong: typing.Optional[int]
    allocation_us: typing.Optional[list] = None  # ours and the other's
    first_us: typing.Optional[list] = None       # the same

    def name(self):
        return f"{self.layout} {self.launch} {self.allocator} {self.buffers} {self.collective} {text_of(self.bytes)}"


def run_group(checks, group, ranks, beside):
    """False where the time was over before the group was. Where the other library fails with such memory, ours is measured alone."""
    name = group.name()
    document = checks.run(name, [*group.flags(ranks), *beside], limit=GROUP_LIMIT)
    failure = (document or {}).get("failure") or ""
    if beside and os.path.realpath(beside[1]) in failure:
        checks.failed.remove(name)
        print(f"       the other library fails: {failure[:200]}")
        document = checks.run(name, group.flags(ranks), limit=GROUP_LIMIT)
    if document is None and checks.deadline <= time.monotonic():
        checks.failed.remove(name)
        return False
    return True


def measure(checks, ranks, other, quick, is_virtual, only_layout=None, first=0):
    """Runs groups until the time is over; returns the number of cells that were not run."""
    beside = ["--vs", other, "--rounds", "3"] if other else []
    bands = VIRTUAL_BANDS if is_virtual else QUICK_BANDS if quick else BANDS
    groups = [group for group in groups_of(bands) if only_layout in (None, group.layout)][first:]
    longest = {}  # seconds of a group, by band and buffers
    for number, group in enumerate(groups):
        begin, kind = time.monotonic(), (group.band.name, group.buffers)
        needed = max(LEAST_SECONDS, 1.2 * longest.get(kind, 0))
        if checks.deadline - begin < needed or not run_group(checks, group, ranks, beside):
            left = groups[number:]
            cells = sum(each.cells() for each in left)
            print(f"\n{cells} cells in {len(left)} groups were not run; --from {first + number} goes on with {left[0].name()}")
            return cells
        longest[kind] = max(longest.get(kind, 0), time.monotonic() - begin)
    return 0


def cells_of(results):
    found = []
    for name, document in results.items():
        if not name.startswith("memory_"):
            continue
        _, layout, launch, allocator, buffers, _, _ = name.split("_")
        for row in document["rows"]:
            ours = row["out_of_place"]
            other = ours.get("vs") or {}
            of_both = {key: [ours[key], other.get(key)] if ours[key] else None for key in ("allocation_us", "first_us")}
            found.append(Cell(layout, launch, allocator, buffers, row["collective"], row["bytes"], ours["time_us"], other.get("time_us"),
                              ours.get("ratio"), ours["wrong"], **of_both))
    return found


def first_ratio(cell):
    """Of the first call on a fresh pair: the other's time / ours; None where it was not measured."""
    if not cell.first_us or not cell.first_us[1]:
        return None
    return cell.first_us[1][0] / cell.first_us[0][0]


def print_cells(cells):
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    if not ratios:
        print(f"\n{len(cells)} cells, beside no other library")
        return
    behind = sorted((cell for cell in cells if cell.ratio is not None and cell.ratio < 1), key=lambda cell: cell.ratio)
    print(f"\n{len(ratios)} cells, NCCL's time / ours: median {statistics.median(ratios):.2f}, {len(behind)} below 1.0")
    for cell in behind:
        print(f"  {cell.ratio:.2f} {cell.time_us:>9.1f} us  {cell.name()}")
    print("\nby allocator and buffers: cells, median, lowest")
    for key in dict.fromkeys((cell.allocator, cell.buffers) for cell in cells):
        of = [cell.ratio for cell in cells if (cell.allocator, cell.buffers) == key and cell.ratio is not None]
        if of:
            print(f"  {' '.join(key):<20} {len(of):>4} {statistics.median(of):>6.2f} {min(of):>6.2f}")
    slow = sorted((ratio, cell) for cell in cells if (ratio := first_ratio(cell)) is not None and ratio < 1)
    if slow:
        print(f"\n{len(slow)} cells whose first call on a fresh pair takes longer than NCCL's")
        for ratio, cell in slow[:30]:
            print(f"  {ratio:.2f} {cell.first_us[0][0]:>9.1f} us  {cell.name()}")
    costly = [cell for cell in cells if cell.allocation_us and cell.allocation_us[1] and cell.allocation_us[0] > 1.25 * cell.allocation_us[1]]
    if costly:
        print(f"\n{len(costly)} cells in which allocating and freeing takes more than 1.25 of the time beside NCCL")
        for cell in costly[:30]:
            print(f"  {cell.allocation_us[0]:>9.1f} us, beside NCCL {cell.allocation_us[1]:.1f}  {cell.name()}")


# ---- PyTorch programs, one process a GPU

STILL_RUNNING = "still running after"
PROGRAM_LIMIT = 150
ALLOCATORS = {"plain": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
RUNS = 3


class Program(typing.NamedTuple):
    name: str
    file: str
    arguments: list
    allocator: str = "plain"


def programs_of(part, quick):
    steps = "10" if quick else "30"
    if part == "torch":
        return [Program(allocator, "torch_memory.py", [], allocator) for allocator in ALLOCATORS]
    return [Program(f"{kind} {allocator}", "torch_training.py", [kind, steps], allocator)
            for kind in ("fsdp", "ddp") for allocator in ALLOCATORS]


def lines_of(text, tag):
    return [json.loads(line[len(tag) + 1:]) for line in text.splitlines() if line.startswith(tag + " ")]


def run_program(program, ranks, library, limit):
    """What rank 0 printed, and what went wrong, if anything did."""
    with tempfile.TemporaryDirectory() as log:
        results = run_ranks(program.file, program.arguments, ranks, library, limit, log, ALLOCATORS[program.allocator])
        made_by = libraries_of(log)
    problem = None
    if any(status is None for status, _ in results):
        problem = f"{STILL_RUNNING} {limit:.0f} s"
    elif any(status != 0 for status, _ in results):
        problem = "; ".join(line for _, text in results for line in text.splitlines()[-3:]) or "no output"
    elif library and made_by != [str(library)]:
        problem = f"the communicators were made by {made_by}"
    return results[0][1], problem, [line for _, text in results for line in lines_of(text, "FAILED")]


def measure_programs(programs, library, ranks, seconds, failed):
    """{what: {"ours": [microseconds of each run], "nvidia": [...], "wrong": elements}}; libraries in turn. Adds to `failed` where ours
    goes wrong."""
    times, begin, last = {}, time.monotonic(), {}
    for run in range(RUNS):
        for program in programs:
            for who, used in (("ours", library), ("nvidia", None)):
                left = seconds - (time.monotonic() - begin)
                if left < max(20.0, 1.2 * last.get(program.name, 0)):
                    print(f"no time left for run {run + 1} of {program.name} with {who}", flush=True)
                    continue
                start = time.monotonic()
                limit = min(left, PROGRAM_LIMIT)
                text, problem, _ = run_program(program, ranks, used, limit)
                last[program.name] = time.monotonic() - start
                print(f"{'FAILED' if problem else 'ok    '} {program.name:<20} {who:<8} run {run + 1} {last[program.name]:>6.1f} s"
                      + (f"\n       {problem[:600]}" if problem else ""), flush=True)
                is_cut_off = problem and problem.startswith(STILL_RUNNING) and limit < PROGRAM_LIMIT
                if problem and who == "ours" and not is_cut_off:
                    failed.append(f"{program.name} run {run + 1}")
                for found in lines_of(text, "ALLOCATOR"):
                    is_expandable = found["expandable"] > 0
                    if is_expandable != (program.allocator == "expandable"):
                        print(f"       PyTorch has {found['expandable']} expandable of {found['segments']} segments")
                for found in lines_of(text, "TIME"):
                    of = times.setdefault(f"{found['name']}, {program.allocator}", {"ours": [], "nvidia": [], "wrong": 0})
                    of[who].append(found["us"])
                    if who == "ours" and found["wrong"]:
                        of["wrong"] += found["wrong"]
                        failed.append(f"{found['name']}, {program.allocator}: {found['wrong']} wrong")
    return times


def ratio_of(found):
    if not found["ours"] or not found["nvidia"]:
        return None
    return statistics.median(found["nvidia"]) / statistics.median(found["ours"])


def print_programs(times):
    print(f"\n{'through PyTorch, a process a GPU, us, medians':<64} {'NCCL':>10} {'ours':>10}")
    for name, found in times.items():
        medians = [f"{statistics.median(found[who]):.1f}" if found[who] else "-" for who in ("nvidia", "ours")]
        ratio = ratio_of(found)
        print(f"{name:<64} {medians[0]:>10} {medians[1]:>10} {'' if ratio is None else f'{ratio:>7.2f}'}"
              f"{'  below 1.0' if ratio is not None and ratio < 1 else ''}{'  WRONG' if found['wrong'] else ''}")


OOM_ROUNDS = 1000


def measure_oom(library, ranks, seconds, quick, failed):
    """{"plain ours": {...}, ...}: with each of PyTorch's allocators and each library a share of the time. Adds to `failed` where ours fails
    and NVIDIA's does not."""
    rounds, begin, found = 20 if quick else OOM_ROUNDS, time.monotonic(), {}
    runs = [(allocator, who) for allocator in ALLOCATORS for who in ("ours", "nvidia")]
    for number, (allocator, who) in enumerate(runs):
        share = (seconds - (time.monotonic() - begin)) / (len(runs) - number)
        if share < 30:
            print(f"no time left for running out of memory, {allocator}, {who}", flush=True)
            continue
        program = Program(f"oom {allocator}", "torch_oom.py", [str(rounds), f"{share - 25:.0f}"], allocator)
        text, problem, failures = run_program(program, ranks, library if who == "ours" else None, share)
        document = (lines_of(text, "OOM") or [{}])[0]
        if problem:
            document["problem"] = failures[0]["problem"] if failures else problem[:600]
        found[f"{allocator} {who}"] = document
        print(f"{'FAILED' if problem else 'ok    '} out of memory, {allocator:<12} {who:<8} {json.dumps(document)}", flush=True)
    for allocator in ALLOCATORS:
        ours, nvidia = (found.get(f"{allocator} {who}", {}) for who in ("ours", "nvidia"))
        if "problem" in ours and "problem" not in nvidia:
            failed.append(f"out of memory, {allocator}: {ours['problem']}")
        elif ours.get("late_rounds") and not nvidia.get("late_rounds"):
            failed.append(f"out of memory, {allocator}: memory is free again only after {ours['free_again_ms']['most']} ms")
    return found


def has_torch():
    return importlib.util.find_spec("torch") is not None


# ---- the document and the picture

def document_of(cells, left, times, oom):
    """Numbers short enough to compare by eye."""
    def short(value):
        if isinstance(value, list):
            return [short(each) for each in value]
        return round(value, 3) if isinstance(value, float) else value

    rows = [{key: short(value) for key, value in cell._asdict().items()} for cell in cells]
    return {"schema": "niccolite-memory-1", "cells": rows, "cells_not_run": left,
            "torch": {name: {**found, "ratio": short(ratio_of(found))} for name, found in times.items()}, "out_of_memory": oom}


def draw(cells, title):
    """An SVG: layouts, launches and buffers across; allocators, collectives and ranges of sizes down."""
    rows, columns, fields = {}, {}, {}
    for cell in cells:
        number, band = heatmap.band_of(cell.bytes)
        row = ([*COMMON, *RARE].index(cell.allocator), [*COLLECTIVES["main"], *COLLECTIVES["others"]].index(cell.collective), number)
        rows[row] = f"{cell.allocator} {cell.collective} {band}"
        column = (cell.layout, cell.launch, BUFFERS.index(cell.buffers))
        columns[column] = (cell.layout, cell.launch, str(cell.buffers))
        fields.setdefault((row, column), []).append(cell.ratio)
    return heatmap.draw(title, dict(sorted(rows.items())), dict(sorted(columns.items())), fields)


def check(checks, parts, build, ranks, other, arguments, is_virtual, shares_gpus):
    """Runs the parts in order, within the time of `checks`, and prints what they find; returns the document that is kept and the cells."""
    cells, left, times, oom = [], 0, {}, {}
    if "cells" in parts:
        left = measure(checks, ranks, other, arguments.quick, is_virtual, arguments.layout, arguments.first_group)
        cells = cells_of(checks.results)
        print_cells(cells)
    wants_torch = [part for part in parts if part != "cells"]
    if wants_torch and (is_virtual or shares_gpus or not has_torch()):
        why = "there are no GPUs" if is_virtual else "ranks share GPUs" if shares_gpus else "there is no PyTorch"
        print(f"\nno PyTorch program is run: {why}")
        wants_torch = []
    library = (build / "lib" / "libnccl.so.2").resolve()
    for number, part in enumerate(wants_torch):
        seconds = (checks.deadline - time.monotonic()) / (len(wants_torch) - number)
        print()
        if part == "oom":
            oom = measure_oom(library, ranks, seconds, arguments.quick, checks.failed)
        else:
            times.update(measure_programs(programs_of(part, arguments.quick), library, ranks, seconds, checks.failed))
    if times:
        print_programs(times)
    return document_of(cells, left, times, oom), cells
