"""The speed of every collective beside another library in the same run, and the goals set for it."""

from .runner import MOVES, RANKS, REDUCTIONS, collectives_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LARGE = "256K,1M,4M,16M,32M,64M,256M,1G"
QUICK_LARGE = "256K,4M,64M"
VIRTUAL_LARGE = "256K,1M"
GROUP_BYTES = 4 * MIB  # over four ranks: a message of 1 MiB between every two


def measure(checks, gpus, other, quick, is_virtual):
    """Small sizes in graph replays, large ones in stream launches; data-moving collectives in bytes, which leaves a block
    per rank even of 8 bytes."""
    versus = ["--vs", other, "--rounds", "3"] if other else []
    small = ["-b", "8", "-e", "128K", "-f", "4" if quick else "2", "-w", "5", "-G", "10", *versus,
             "-n", "5" if is_virtual else "50", "--out-of-place"]
    large = ["--sizes", VIRTUAL_LARGE if is_virtual else QUICK_LARGE if quick else LARGE, "-w", "2", *versus,
             "-n", "2" if is_virtual else "10", "--out-of-place"]
    threads = RANKS["threads"]
    for kind, names, type_name in (("reductions", REDUCTIONS, "float"), ("moves", MOVES, "uint8")):
        flags = [collectives_of(names, gpus), *threads(gpus), "-d", type_name]
        checks.run(f"small_{gpus}_{kind}", [*flags, *small])
        checks.run(f"large_{gpus}_{kind}", [*flags, *large])
    if gpus > 2:
        checks.run("small_2_reductions", ["all_reduce", *threads(2), *small])
        checks.run("large_2_reductions", ["all_reduce", *threads(2), *large])
    if not quick:
        processes = RANKS["processes"](gpus)
        checks.run(f"small_{gpus}_processes", ["all_reduce,all_gather,sendrecv", *processes, *small])
        checks.run(f"large_{gpus}_processes", ["all_reduce,all_gather,sendrecv", *processes, *large])
    group = ["alltoall", "--send-recv", *threads(gpus), "--sizes", str(GROUP_BYTES), "--out-of-place", "-w", "5", *versus]
    checks.run(f"group_{gpus}_graph", [*group, "-G", "10", "-n", "5" if is_virtual else "20"])
    # A process of its own, so that nothing has been loaded or connected before.
    checks.run(f"group_{gpus}_stream", [*group, "--memory", "-n", "5" if is_virtual else "50"])


def measure_schedule_step(checks, gpus):
    """Microseconds per hop of a ring: what one instruction of a schedule costs with the flight of its data."""
    times = {}
    for count in range(2, gpus + 1):
        document = checks.run(f"ring_{count}_threads_graph",
                              ["all_reduce", *RANKS["threads"](count), "--sizes", "128", "-n", "100", "-w", "5", "-G", "10",
                               "--rounds", "3", "--out-of-place"],
                              {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
        if document and document["rows"]:
            times[count] = document["rows"][0]["out_of_place"]["time_us"]
    if len(times) < 2:
        return None
    # A ring of n ranks has 2(n - 1) hops one after the other: the slope over the hops is one step.
    first, last = min(times), max(times)
    return {"ring_128B_us": times, "step_us": (times[last] - times[first]) / (2 * (last - first))}


class Speeds:
    """What measure() found: for each collective, by size, the out-of-place results."""

    def __init__(self, results, gpus):
        self.gpus, self.by_collective = gpus, {}
        for name in (f"{size}_{gpus}_{kind}" for kind in ("reductions", "moves") for size in ("small", "large")):
            for row in results.get(name, {"rows": []})["rows"]:
                if row["bytes"] > 0:  # fewer elements than ranks
                    self.by_collective.setdefault(row["collective"], {})[row["bytes"]] = row["out_of_place"]
        self.group = {mode: results[name] for mode in ("graph", "stream")
                      if (name := f"group_{gpus}_{mode}") in results}

    def sizes(self):
        return sorted({size for rows in self.by_collective.values() for size in rows})

    def has_other(self):
        return any("vs" in result for rows in self.by_collective.values() for result in rows.values())

    def table(self, title, cell):
        """Sizes down, collectives across; cell(result) -> text."""
        names = list(self.by_collective)
        lines = [f"\n{title}", f"  {'bytes':>10}" + "".join(f" {name:>15}" for name in names)]
        for size in self.sizes():
            cells = (self.by_collective[name].get(size) for name in names)
            lines.append(f"  {size:>10}" + "".join(f" {cell(result) if result else '':>15}" for result in cells))
        return "\n".join(lines)

    def print_tables(self):
        if not self.by_collective:
            return
        print(f"\n{self.gpus} ranks, a thread each, plain buffers; graph replays up to 128 KiB, stream launches above")
        if self.has_other():
            print(self.table("ratio: NCCL's time / ours; above 1, ours is faster", lambda result: f"{result['ratio']:.2f}"))
            print(self.table("us: ours NCCL", lambda result: f"{result['time_us']:.1f} {result['vs']['time_us']:.1f}"))
            print(self.table("bus bandwidth, GB/s: ours NCCL",
                             lambda result: f"{result['busbw_gbs']:.1f} {result['vs']['busbw_gbs']:.1f}"))
        else:
            print(self.table("us", lambda result: f"{result['time_us']:.1f}"))
            print(self.table("bus bandwidth, GB/s", lambda result: f"{result['busbw_gbs']:.1f}"))
        self.print_group()

    def print_group(self):
        print(f"\na group of {self.gpus} x {self.gpus} messages of {GROUP_BYTES // self.gpus / MIB:g} MiB")
        for mode, document in self.group.items():
            for row in document["rows"]:
                result = row["out_of_place"]
                beside = f", NCCL {result['vs']['time_us']:.1f} us, ratio {result['ratio']:.2f}" if "vs" in result else ""
                print(f"  {mode:<7} ours {result['time_us']:.1f} us{beside}")
        for who, use in self.memory().items():
            print(f"  device memory of a communicator, {who}: {use['after_init_bytes'] / MIB:.0f} MiB after init, "
                  f"{use['after_run_bytes'] / MIB:.0f} MiB after the group")

    def memory(self):
        found = self.group.get("stream", {}).get("device_memory") or {}
        names = {"library": "ours", "vs": "NCCL"}
        return {names[which]: use for which, use in found.items() if use}

    def worst(self, name, is_wanted):
        """The least ratio of a collective over the sizes that is_wanted() picks, and its size."""
        found = [(result["ratio"], size) for size, result in self.by_collective[name].items()
                 if is_wanted(size) and "ratio" in result]
        return min(found) if found else None

    def goals(self):
        """(goal, measured, is it met) of what the project wants; only what was measured."""
        goals = []
        all_reduce = self.by_collective.get("all_reduce", {})
        if self.gpus == 4 and 2 * KIB in all_reduce:
            time_us = all_reduce[2 * KIB]["time_us"]
            goals.append(("all_reduce of 2 KiB in 4.5 us", f"{time_us:.2f} us", time_us <= 4.5))
        if self.gpus == 4 and GIB in all_reduce:
            busbw = all_reduce[GIB]["busbw_gbs"]
            goals.append(("all_reduce of 1 GiB at 320 GB/s", f"{busbw:.1f} GB/s", busbw >= 320))
        for name in self.by_collective:
            for text, is_wanted, least in (("as fast as NCCL up to 32 KiB", lambda size: size <= 32 * KIB, 1.0),
                                           ("0.9 of NCCL's bandwidth from 32 MiB", lambda size: size >= 31 * MIB, 0.9)):
                if worst := self.worst(name, is_wanted):
                    goals.append((f"{name} {text}", f"{worst[0]:.2f} at {worst[1]} bytes", worst[0] >= least))
        for mode, document in self.group.items():
            for row in document["rows"]:
                if "vs" in row["out_of_place"]:
                    ratio = row["out_of_place"]["ratio"]
                    goals.append((f"group of messages as fast as NCCL's, {mode}", f"{ratio:.2f}", ratio >= 1))
        if "ours" in self.memory():
            used = self.memory()["ours"]["after_run_bytes"] / MIB
            goals.append(("200 MiB of device memory after an all-to-all by messages", f"{used:.0f} MiB", used < 200))
        return goals
