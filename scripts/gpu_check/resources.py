"""What the library takes beside time: CTAs, device memory, its file, and what a communicator's life costs."""

import json
import os
import pathlib
import re

from .runner import MOVES, RANKS, REDUCTIONS, collectives_of
from .sizes import GIB, KIB, MIB, as_flag, doubling
from .speed import versus

TUNING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING", "NCCL_DEBUG_FILE": ""}
TUNING_LINE = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\S+) proto (\S+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
LIFE_CYCLES = 5


def most_ctas(text):
    """What takes most CTAs, of the lines that NCCL_DEBUG_SUBSYS=TUNING prints; None without lines. A channel is a CTA."""
    found = [{"ctas": int(last) - int(first) + 1, "collective": name, "bytes": int(size), "algorithm": algorithm,
              "protocol": protocol} for name, size, algorithm, protocol, first, last in TUNING_LINE.findall(text)]
    return max(found, key=lambda line: line["ctas"], default=None)


def measure_ctas(checks, gpus, quick, is_virtual):
    """Every collective at every size once, with what the library chooses by itself."""
    chosen = {name: os.environ[name] for name in ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
                                                  "NCCL_CTA_POLICY", "NCCL_ALGO", "NCCL_PROTO") if name in os.environ}
    if chosen:
        print(f"CTAs are not counted: the environment has {', '.join(chosen)}")
        return None
    sizes = as_flag(doubling(8, MIB if is_virtual else 64 * MIB if quick else 2 * GIB))
    name = f"ctas_{gpus}"
    checks.run(name, [collectives_of(REDUCTIONS + MOVES, gpus), *RANKS["threads"](gpus), *sizes, "-n", "1", "-w", "0", "-c", "0",
                      "--out-of-place"], TUNING)
    return most_ctas(checks.texts.get(name, ""))


def measure_memory(checks, gpus, other, is_virtual):
    """Device memory of a communicator after one collective, {"all_reduce": {"ours": {...}, "NCCL": {...}}, ...}: each in
    processes of its own."""
    sizes = [4 * KIB, 256 * KIB, MIB if is_virtual else 64 * MIB]
    found = {}
    for name in ("all_reduce", "alltoall"):
        document = checks.run(f"memory_{gpus}_{name}", [name, *RANKS["threads"](gpus), *as_flag(sizes), "-n", "2", "-w", "1",
                                                        "--out-of-place", "--memory", *versus(other)])
        uses = (document or {}).get("device_memory") or {}
        found[name] = {who: uses[which] for which, who in (("library", "ours"), ("vs", "NCCL")) if uses.get(which)}
    return found


def measure_life(checks, gpus, build, other):
    """Milliseconds of init, first operation and destroy of all ranks in one process that has done so before."""
    program = build / "bin" / "init_destroy"
    if not program.exists():
        print(f"no {program}: the life of a communicator is not measured; NICCOLITE_BUILD_BENCH builds it", flush=True)
        return {}
    found = {}
    for who, library in (("ours", build / "lib" / "libnccl.so.2"), ("NCCL", other)):
        if library:
            text = checks.run_program(f"life_{gpus}_{who.lower()}", [program, LIFE_CYCLES, gpus, library])
            if text:
                found[who] = json.loads(text.splitlines()[-1])["median_ms"]
    return found


def library_bytes(document):
    """The size of the library's file, as measured by `niccolite perf`."""
    path = pathlib.Path(document["run"]["library"]["path"])
    return path.stat().st_size if path.exists() else None


def measure(checks, gpus, build, other, quick, is_virtual):
    return {"ctas": measure_ctas(checks, gpus, quick, is_virtual),
            "device_memory": measure_memory(checks, gpus, other, is_virtual),
            "life_ms": measure_life(checks, gpus, build, other),
            "library_bytes": library_bytes(checks.results["every_gpu"])}


def print_resources(resources):
    if most := resources["ctas"]:
        print(f"most CTAs: {most['ctas']}, {most['collective']} of {most['bytes']} bytes, {most['algorithm']} {most['protocol']}")
    for collective, uses in resources["device_memory"].items():
        for who, use in uses.items():
            print(f"device memory of a communicator, {who}: {use['after_init_bytes'] / MIB:.0f} MiB after init, "
                  f"{use['after_run_bytes'] / MIB:.0f} MiB after {collective}")
    for who, times in resources["life_ms"].items():
        print(f"life of a communicator, {who}: init {times['init']:.1f} ms, first operation {times['first_operation']:.2f} ms, "
              f"destroy {times['destroy']:.1f} ms")
    if resources["library_bytes"]:
        print(f"library file: {resources['library_bytes'] / 1e6:.1f} MB")
