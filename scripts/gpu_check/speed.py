"""The speed of every collective beside another library in the same run, as graph replays and as stream launches."""

from .runner import MOVES, RANKS, REDUCTIONS, collectives_of
from .sizes import MIB, as_flag, bands_for, doubling

LAUNCHES = {"graph": "graph replays", "stream": "stream launches"}
# Small data are moved in bytes, so that every rank has a block even of 8 of them.
KINDS = {"reductions": (REDUCTIONS, "float"), "moves": (MOVES, "uint8"), "collectives": (REDUCTIONS + MOVES, "float"),
         "all_reduce": (("all_reduce",), "float"), "processes": (("all_reduce", "all_gather", "sendrecv"), "float")}
GROUP_BYTES = 4 * MIB  # over four ranks: a message of 1 MiB between every two


def versus(other):
    return ["--vs", other, "--rounds", "3"] if other else []


def measure(checks, gpus, other, quick, is_virtual):
    bands = bands_for(quick, is_virtual)
    fixed = ["--out-of-place", "-w", "2", *versus(other)]
    threads = RANKS["threads"]

    def run(launch, band, count, kind, ranks):
        names, type_name = KINDS[kind]
        sizes = as_flag(doubling(band.first, band.last, 4 if quick else 2))
        checks.run(f"{launch}_{count}_{kind}_{band.name}", [collectives_of(names, count), *ranks(count), "-d", type_name, *sizes,
                                                            *band.flags[launch], *fixed])

    for launch in LAUNCHES:
        for band in bands:
            for kind in ("reductions", "moves") if band is bands[0] else ("collectives",):
                run(launch, band, gpus, kind, threads)
            if gpus > 2:
                run(launch, band, 2, "all_reduce", threads)
    if not quick:
        # What another layout can change: the latency of graphs, the bandwidth of streams.
        for launch, band in zip(LAUNCHES, bands):
            run(launch, band, gpus, "processes", RANKS["processes"])
    group = ["alltoall", "--send-recv", *threads(gpus), *as_flag([GROUP_BYTES]), *fixed]
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
    """What measure() found for a number of ranks and one kind of launch: per collective, by size, the out-of-place results."""

    def __init__(self, documents, ranks, launch):
        self.ranks, self.launch, self.by_collective = ranks, launch, {}
        runs = tuple(f"{launch}_{ranks}_{kind}_" for kind in KINDS if kind != "processes")
        for name, document in documents.items():
            for row in document["rows"] if name.startswith(runs) else ():
                if row["bytes"] > 0:  # fewer elements than ranks
                    self.by_collective.setdefault(row["collective"], {})[row["bytes"]] = row["out_of_place"]

    def sizes(self):
        return sorted({size for rows in self.by_collective.values() for size in rows})

    def has_other(self):
        return any("vs" in result for rows in self.by_collective.values() for result in rows.values())

    def worst(self, name, first=0, last=1 << 62):
        """The least ratio of a collective from one size to another, and its size; None where there is no ratio."""
        found = [(result["ratio"], size) for size, result in self.by_collective.get(name, {}).items()
                 if first <= size <= last and "ratio" in result]
        return min(found, default=None)

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
        where = f"{self.ranks} ranks, {LAUNCHES[self.launch]}"
        print(f"\n{where}: a thread each, plain buffers")
        if self.has_other():
            print(self.table(f"{where}, ratio: NCCL's time / ours; above 1, ours is faster",
                             lambda result: f"{result['ratio']:.2f}"))
            print(self.table(f"{where}, us: ours NCCL",
                             lambda result: f"{result['time_us']:.1f} {result['vs']['time_us']:.1f}"))
            print(self.table(f"{where}, bus bandwidth, GB/s: ours NCCL",
                             lambda result: f"{result['busbw_gbs']:.1f} {result['vs']['busbw_gbs']:.1f}"))
        else:
            print(self.table(f"{where}, us", lambda result: f"{result['time_us']:.1f}"))
            print(self.table(f"{where}, bus bandwidth, GB/s", lambda result: f"{result['busbw_gbs']:.1f}"))


def all_speeds(documents, gpus):
    """For the table of the machine and that of two ranks: {(ranks, launch): Speeds}, of what was measured."""
    found = {(ranks, launch): Speeds(documents, ranks, launch) for ranks in dict.fromkeys((gpus, 2)) for launch in LAUNCHES}
    return {key: speeds for key, speeds in found.items() if speeds.by_collective}


def print_group(documents, gpus):
    """The group of messages between all ranks."""
    for launch in LAUNCHES:
        for row in documents.get(f"group_{gpus}_{launch}", {"rows": []})["rows"]:
            result = row["out_of_place"]
            beside = f", NCCL {result['vs']['time_us']:.1f} us, ratio {result['ratio']:.2f}" if "vs" in result else ""
            print(f"group of {gpus} x {gpus} messages of {GROUP_BYTES // gpus / MIB:.3g} MiB, {launch}: "
                  f"ours {result['time_us']:.1f} us{beside}")
