"""Every collective, type, operation, place, kind of ranks and kind of launch, each result verified."""

from .runner import MOVES, RANKS, REDUCTIONS, collectives_of

ALL = REDUCTIONS + MOVES
# Odd numbers of bytes, which no rank count, chunk or vector divides: less than a slot, a little more than one line, a
# middle size. Large ones take the time of the host's comparison, so they come with few types only.
SIZES = "13,1003,300007"
LARGE = "20971531"
ONCE = ["-n", "1", "-w", "0"]
# A graph must give new results for new data.
MODES = {"stream": [], "graph": ["-G", "1", "-c", "2"]}


def check_matrix(checks, gpus, quick):
    """Everything, for each kind of ranks, in streams and graphs."""
    names = collectives_of(ALL, gpus)
    types = ["-d", "float,bfloat16,int8,f8e4m3", "-o", "sum,avg,mulsum"] if quick else ["-d", "all", "-o", "all"]
    for kind, flags in RANKS.items():
        for mode, mode_flags in MODES.items():
            if quick and mode == "graph" and kind != "threads":
                continue
            ranks = [names, *flags(gpus), *ONCE, *mode_flags, "-r", str(gpus // 2)]
            checks.run(f"correct_{gpus}_{kind}_{mode}", [*ranks, *types, "--bitwise", "--sizes", "1003" if quick else SIZES])
            if not quick or mode == "graph":
                checks.run(f"correct_{gpus}_{kind}_{mode}_large", [*ranks, "-d", "float,int8", "--sizes", LARGE])


def check_corners(checks, gpus, quick):
    """What the matrix leaves out: roots, empty operations, groups, messages instead of functions, other rank counts."""
    rooted = "broadcast,reduce,gather,scatter"
    threads = RANKS["threads"](gpus)
    for mode, flags in MODES.items():
        checks.run(f"correct_{gpus}_roots_{mode}",
                   [rooted, *threads, *ONCE, *flags, "-r", "-1", "-d", "int32,bfloat16", "-o", "max,avg", "--sizes", "1003,300007"])
        checks.run(f"correct_{gpus}_send_recv_{mode}",
                   ["alltoall,gather,scatter", *threads, *ONCE, *flags, "--send-recv", "-d", "int8,float", "--sizes", "13,1003,4000001"])
    checks.run(f"correct_{gpus}_empty", [collectives_of(ALL, gpus), *threads, *ONCE, "--sizes", "0"])
    groups = ",".join(name for name in ALL if name != "hypercube")
    for kind, flags in RANKS.items():
        if quick and kind != "one_thread":
            continue
        checks.run(f"correct_{gpus}_{kind}_groups_of_4",
                   [groups, *flags(gpus), "-n", "2", "-m", "4", "--sizes", "1003,300007"])
    for fewer in dict.fromkeys((1, 2, 3)):
        if fewer < gpus and not quick:
            checks.run(f"correct_{fewer}_threads_stream",
                       [collectives_of(ALL, fewer), *RANKS["threads"](fewer), *ONCE, "--bitwise", "-o", "sum,prod,avg,mulsumd",
                        "-d", "int8,half,float,double,f8e5m2", "--sizes", "13,300007", "-r", str(fewer - 1)])


def check(checks, gpus, quick):
    check_matrix(checks, gpus, quick)
    check_corners(checks, gpus, quick)
