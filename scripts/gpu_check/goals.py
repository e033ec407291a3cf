"""What the project wants of its speed, and whether a run shows it."""

import statistics
import typing

from .patterns import CLIFF, cliffs_of
from .sizes import GIB, KIB, MIB, text_of

# Sizes of graph replays, and for each collective NCCL's time / ours that every size of the band must reach, on four GPUs.
BANDS = ((8, 8 * KIB), (32 * KIB, 128 * KIB), (512 * KIB, 2 * MIB), (4 * MIB, 16 * MIB), (32 * MIB, 128 * MIB),
         (512 * MIB, 2 * GIB))
RATIOS = {"all_reduce": (2.4, 1.9, 1.35, 1.25, 1.1, 1.04),
          "all_gather": (2.0, 1.6, 1.3, 1.3, 1.15, 1.1),
          "reduce_scatter": (2.0, 1.6, 1.3, 1.3, 1.15, 1.1),
          "alltoall": (2.0, 1.6, 1.3, 1.3, 1.15, 1.1),
          "broadcast": (2.0, 1.5, 1.4, 1.5, 1.15, 1.04),
          "sendrecv": (2.0, 1.6, 1.3, 1.3, 1.3, 1.05)}
SENDRECV_128_MIB = 2.2
TWO_RANKS_SMALL_ALL_REDUCE = 1.7
CTAS, CTAS_OF_TWO_RANKS = 24, 48  # LL128 between two ranks has more
MEMORY_MIB = {"all_reduce": 64, "alltoall": 128}
LIBRARY_MB = 12
LIFE_MS = {"init": 40, "first_operation": 3, "destroy": 20}


class Goal(typing.NamedTuple):
    goal: str
    measured: str
    met: typing.Optional[bool]  # None: this run did not measure it

    def line(self):
        state = {True: "ok", False: "MISSED", None: "-"}[self.met]
        return f"{state:<6} {self.goal}: {self.measured}"


def at_least(goal, worst, ratio):
    """`worst`: (ratio, size) or None."""
    if worst is None:
        return Goal(f"{goal} {ratio:g}", "not measured", None)
    return Goal(f"{goal} {ratio:g}", f"{worst[0]:.2f} at {text_of(worst[1])}", worst[0] >= ratio)


def at_most(goal, value, limit, unit):
    if value is None:
        return Goal(f"{goal} at most {limit} {unit}", "not measured", None)
    return Goal(f"{goal} at most {limit} {unit}", f"{value:.4g} {unit}", value <= limit)


def four_rank_goals(graph):
    for name, ratios in RATIOS.items():
        for (first, last), ratio in zip(BANDS, ratios):
            yield at_least(f"{name} graph {text_of(first)} - {text_of(last)}", graph and graph.worst(name, first, last), ratio)
    yield at_least("sendrecv graph 128 MiB", graph and graph.worst("sendrecv", 128 * MIB, 128 * MIB), SENDRECV_128_MIB)


def no_row_below_one(speeds, names):
    for name in names:
        yield at_least(f"{name} {speeds.launch} {speeds.ranks} ranks, every size", speeds.worst(name), 1.0)


def speed_goals(speeds, gpus):
    """`speeds`: {(ranks, launch): Speeds}."""
    goals = list(four_rank_goals(speeds.get((4, "graph")))) if gpus == 4 else []
    for (ranks, launch), found in speeds.items():
        if ranks == 2 or launch == "stream":
            goals += no_row_below_one(found, found.by_collective)
    if graph := speeds.get((2, "graph")):
        goals.append(at_least("all_reduce graph 2 ranks, 8 B - 8 KiB", graph.worst("all_reduce", 8, 8 * KIB),
                              TWO_RANKS_SMALL_ALL_REDUCE))
    return goals


def resource_goals(resources, gpus):
    most = resources["ctas"]
    goals = [at_most("by default", most and most["ctas"], CTAS_OF_TWO_RANKS if gpus == 2 else CTAS, "CTAs")]
    for name, limit in MEMORY_MIB.items():
        use = resources["device_memory"].get(name, {}).get("ours")
        goals.append(at_most(f"device memory after {name}", use and use["after_run_bytes"] / MIB, limit, "MiB"))
    goals.append(at_most("library file", resources["library_bytes"] and resources["library_bytes"] / 1e6, LIBRARY_MB, "MB"))
    times = resources["life_ms"].get("ours", {})
    for part, limit in LIFE_MS.items():
        goals.append(at_most(f"{part.replace('_', ' ')} of all ranks in one process", times.get(part), limit, "ms"))
    return goals


def fine_goals(fallen):
    """`fallen`: per collective what fine.find_fallen() found."""
    return [Goal(f"{name} graph: no size between powers of two falls off",
                 f"{len(sizes)} do: " + ", ".join(text_of(each["bytes"]) for each in sizes) if sizes else "none does", not sizes)
            for name, sizes in fallen.items()]


def pattern_goals(cells):
    """`cells`: patterns.cells_of()."""
    ratios = [cell.ratio for cell in cells if cell.ratio is not None]
    cliffs = cliffs_of(cells)
    goals = [Goal(f"no shape takes more than {CLIFF:g} of the time of its aligned neighbour", f"{len(cliffs)} do", not cliffs)]
    if ratios:
        goals += [Goal("every cell of patterns at least 1.0", f"{min(ratios):.2f}", min(ratios) >= 1),
                  Goal("median of patterns at least 1.4", f"{statistics.median(ratios):.2f}", statistics.median(ratios) >= 1.4)]
    return goals
