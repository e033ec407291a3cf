"""Ranks without peer access to each other: by host memory (NCCL_P2P_DISABLE=1), and by the network (threads with
NCCL_SHM_DISABLE=1, too; processes that are told to be on different machines), beside another library under the same variables in
the same run. The other takes what way it likes: of two ranks on one GPU NVIDIA's uses the GPU's memory whatever the variables
say, but for processes on different machines. Its log tells."""

import statistics

WAYS = {"host": {"NCCL_P2P_DISABLE": "1"}, "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}}
APART = {("sockets", "processes"): ["--apart"]}
LAYOUTS = {"threads": lambda n: ["-t", str(n)], "processes": lambda n: ["--processes", str(n)]}
COLLECTIVES = "all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall,gather,scatter,sendrecv"
SMALL = "8,1K,32K,256K"
LARGE = "1M,8M,64M"
KEY = ("way", "layout", "launch", "collective", "bytes")


def measure(checks, ranks, other, quick, only_layout=None):
    beside = ["--vs", other, "--rounds", "3"] if other else []
    for way, variables in WAYS.items():
        for layout, split in LAYOUTS.items():
            if only_layout not in (None, layout):
                continue
            for launch in ("graph", "eager"):
                for size, sizes, iterations in (("small", SMALL, 20), ("large", LARGE, 4)):
                    if quick and launch == "eager" and size == "large":
                        continue
                    timing = ["-n", str(iterations), "-w", "3"] + (["-G", "5"] if launch == "graph" else [])
                    checks.run(f"way_{way}_{layout}_{launch}_{size}",
                               [COLLECTIVES, "-d", "float", "--sizes", sizes, "--out-of-place", *split(ranks), *APART.get((way, layout), []), *timing, *beside],
                               environment=variables, limit=100)


def rows_of(results):
    rows = []
    for name, document in results.items():
        if not name.startswith("way_"):
            continue
        _, way, layout, launch, _ = name.split("_")
        for row in document["rows"]:
            own = row["out_of_place"]
            theirs = own and own.get("vs")
            if own:
                rows.append({"way": way, "layout": layout, "launch": launch, "collective": row["collective"], "bytes": row["bytes"],
                             "time_us": own["time_us"], "wrong": own["wrong"], "other_us": theirs and theirs["time_us"]})
    return rows


def print_tables(rows):
    """Microseconds, and in brackets the other's time divided by them."""
    for way, layout, launch in dict.fromkeys((row["way"], row["layout"], row["launch"]) for row in rows):
        of = [row for row in rows if (row["way"], row["layout"], row["launch"]) == (way, layout, launch)]
        sizes = sorted({row["bytes"] for row in of})
        print(f"\n{way}, {layout}, {launch}: us (the other's / ours)")
        print(f"{'':>15}" + "".join(f"{size:>19}" for size in sizes))
        for collective in dict.fromkeys(row["collective"] for row in of):
            cells = []
            for size in sizes:
                row = next((row for row in of if row["collective"] == collective and row["bytes"] == size), None)
                ratio = f" ({row['other_us'] / row['time_us']:.2f})" if row and row["other_us"] else ""
                cells.append(f"{row['time_us']:.1f}{ratio}" if row else "-")
            print(f"{collective:>15}" + "".join(f"{cell:>19}" for cell in cells))
    for way in WAYS:
        ratios = [row["other_us"] / row["time_us"] for row in rows if row["way"] == way and row["other_us"]]
        if ratios:
            print(f"{way}: {len(ratios)} cells, median {statistics.median(ratios):.2f}, lowest {min(ratios):.2f}")
