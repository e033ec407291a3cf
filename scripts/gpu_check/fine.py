"""Sizes between the powers of two: a sweep by a factor of 1.3, and what falls off in it."""

import math

from .runner import RANKS
from .sizes import GIB, KIB, as_flag, bands_for, doubling

COLLECTIVES = ("all_reduce", "all_gather", "sendrecv")
FACTOR = 1.3
LATER = 1.05  # of the time of the next larger power of two
LESS = 0.9  # of the bandwidth between the neighbouring powers of two


def sizes_between(first, last, ranks):
    """Powers of two from `first` to `last` and a geometric sequence, in whole floats per rank."""
    unit = 4 * ranks
    steps = int(math.log(last / first) / math.log(FACTOR))
    between = {round(first * FACTOR**step / unit) * unit for step in range(steps + 1)}
    return sorted(size for size in {*doubling(first, last), *between} if size >= first)


def find_fallen(times):
    """`times`: microseconds by size. Sizes that take longer than the next larger power of two, or move fewer bytes per time
    than the neighbouring powers of two let expect (a straight line where both axes are logarithmic)."""
    fallen = []
    for size, time_us in sorted(times.items()):
        above = 1 << size.bit_length()  # the next larger power of two
        below = above >> 1
        reasons = []
        if above in times and time_us > LATER * times[above]:
            reasons.append(f"{time_us:.2f} us, {time_us / times[above]:.2f} of the time of {above} bytes")
        if size != below and above in times and below in times:
            share = math.log2(size / below)
            expected = (below / times[below]) ** (1 - share) * (above / times[above]) ** share
            if size / time_us < LESS * expected:
                reasons.append(f"{size / time_us / 1e3:.2f} GB/s, {size / time_us / expected:.2f} of what its neighbours give")
        if reasons:
            fallen.append({"bytes": size, "time_us": time_us, "reasons": reasons})
    return fallen


def measure(checks, gpus, quick, is_virtual):
    """Returns the fallen sizes per collective. Each run is judged by itself."""
    fallen = {}
    for band in bands_for(quick, is_virtual)[:1 if is_virtual else None]:
        # From a size of which every rank has a share, to where the next band begins.
        first = 1 << max(band.first, 4 * gpus).bit_length() - 1
        last = 16 * KIB if is_virtual else min(2 * band.last, 2 * GIB)
        document = checks.run(f"fine_{gpus}_{band.name}",
                              [",".join(COLLECTIVES), *RANKS["threads"](gpus), *as_flag(sizes_between(first, last, gpus)),
                               *band.flags["graph"], "-w", "2", "--rounds", "3", "--out-of-place"])
        times = {}
        for row in (document or {"rows": []})["rows"]:
            if row["bytes"] > 0:
                times.setdefault(row["collective"], {})[row["bytes"]] = row["out_of_place"]["time_us"]
        for name, found in times.items():
            fallen.setdefault(name, []).extend(find_fallen(found))
    return fallen


def print_fallen(fallen):
    for name, sizes in fallen.items():
        print(f"\n{name}, graph replays, factor {FACTOR}: " + (f"{len(sizes)} sizes fall off" if sizes else "no size falls off"))
        for each in sizes:
            print(f"  {each['bytes']:>10}: {'; '.join(each['reasons'])}")
