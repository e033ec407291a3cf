"""The sizes that are measured, in bytes, and how they are written."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def doubling(first, last, factor=2):
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def text_of(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def as_flag(sizes):
    return ["--sizes", ",".join(str(size) for size in sizes)]


class Band:
    """Sizes that are measured in one run: a count of iterations suits them all, and few large ones take long enough."""

    def __init__(self, name, first, last, stream, graph):
        self.name, self.first, self.last = name, first, last
        # Operations per measurement; with graphs also the replays, of which the median counts.
        self.flags = {"stream": ["-n", str(stream)], "graph": ["-n", str(graph[0]), "-G", str(graph[1])]}


BANDS = (Band("small", 8, 128 * KIB, 200, (50, 10)),
         Band("large", 256 * KIB, 128 * MIB, 20, (10, 4)),
         Band("huge", 256 * MIB, 2 * GIB, 4, (2, 3)))
QUICK_BANDS = (Band("small", 8, 128 * KIB, 100, (50, 5)),
               Band("large", 256 * KIB, 64 * MIB, 10, (5, 3)))
# CPU threads that stand in for GPUs; what is shown is that everything runs.
VIRTUAL_BANDS = (Band("small", 8, 128 * KIB, 5, (5, 2)),
                 Band("large", 256 * KIB, 1 * MIB, 2, (2, 1)))


def bands_for(quick, is_virtual):
    return VIRTUAL_BANDS if is_virtual else QUICK_BANDS if quick else BANDS
