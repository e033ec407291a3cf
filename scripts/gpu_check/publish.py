"""Turns the results of a run into what is committed: a JSON file, plots, and the tables of docs/performance.md."""

import json
import pathlib
import re

import plot

from . import memory, patterns
from .sizes import GIB, KIB, MIB, text_of
from .speed import GROUP_BYTES, KINDS, LAUNCHES, all_speeds

# GB/s that one GPU can copy to a peer, by name; the line above all curves of a plot.
LINK_LIMITS = {"NVIDIA H200": ("peer copy", 392)}
TABLE_COLUMNS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv", "gather", "scatter")
TABLE_SIZES = (32, 2 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, 2 * GIB)
TABLES = re.compile(rf"({'|'.join(LAUNCHES)})_\d+_({'|'.join(KINDS)})_\w+")
ROW = re.compile(r'\{\s*"bytes": [^{}]*\}')


def load(path):
    """The results.json that a run left in a folder, or that file itself."""
    path = pathlib.Path(path)
    path = path / "results.json" if path.is_dir() else path
    if not path.exists():
        raise SystemExit(f"gpu-check: no {path}; scripts/gpu-check --speed --output writes it")
    return json.loads(path.read_text())


def title_of(machine):
    """"4 x NVIDIA H200"."""
    return ", ".join(f"{count} x {name}" for name, count in machine["ranks_on"].items())


def name_of(machine):
    """"h200_x4": the part of file names that says where the numbers are from."""
    devices = "_".join(name.replace("NVIDIA", "").strip().lower().replace(" ", "_") for name in machine["ranks_on"])
    return f"{devices}_x{gpus_of(machine)}"


def gpus_of(machine):
    return sum(machine["ranks_on"].values())


def curves_of(tables, ranks):
    """Of graph replays in threads: {collective: (ours, the other library's)}, each (bytes, microseconds, GB/s); the second may be empty."""
    found = {}
    for name, table in tables.items():
        if "rows" not in table or table["layout"]["launch"] != "graph" or table["layout"]["ranks"] != ranks or "_processes_" in name:
            continue
        for collective, rows in table["rows"].items():
            ours, other = found.setdefault(collective, ([], []))
            ours += [(row["bytes"], row["us"], row["busbw_gbs"]) for row in rows]
            other += [(row["bytes"], row["nccl_us"], row["nccl_busbw_gbs"]) for row in rows if "nccl_us" in row]
    return found


def draw_plots(document, path_of):
    """An SVG per collective of a published document into path_of(collective)."""
    machine = document["machine"]
    limit = next((LINK_LIMITS[name] for name in machine["ranks_on"] if name in LINK_LIMITS), None)
    for collective, (ours, other) in curves_of(document["tables"], gpus_of(machine)).items():
        curves = [plot.Curve(f"Niccolite {document['library']['version']}", ours)]
        if other:
            curves.append(plot.Curve(f"NCCL {document['vs']['version']}", other, plot.COLORS[1]))
        pairs = [curves] if other else []
        path_of(collective).write_text(plot.draw(curves, pairs, collective, f"{title_of(machine)}, graph replays, out of place", limit))


def draw_again(paths, images):
    """Draws the pictures of committed results again, after their look has changed."""
    for path in map(pathlib.Path, paths):
        document = json.loads(path.read_text())
        if "cells" in document:
            kind = "memory" if document["schema"].startswith("niccolite-memory") else "patterns"
            part = {"memory": memory, "patterns": patterns}[kind]
            cells = [part.Cell(**cell) for cell in document["cells"]]
            machine = path.stem.removesuffix(f"_{kind}")
            note = document.get("note", "").partition(";")[0]  # "two ranks on one GPU"
            title = f"{kind}, {title_of(document['machine'])}" + (f"; {note}" if note else "")
            (images / f"{kind}_{machine}.svg").write_text(part.draw(cells, title))
        else:
            draw_plots(document, lambda name, document=document: images / f"{name}_{name_of(document['machine'])}.svg")


def published_row(row):
    result = row["out_of_place"] or row["in_place"]
    found = {"bytes": row["bytes"], "us": round(result["time_us"], 2), "busbw_gbs": round(result["busbw_gbs"], 1)}
    if "vs" in result:
        found |= {"nccl_us": round(result["vs"]["time_us"], 2), "nccl_busbw_gbs": round(result["vs"]["busbw_gbs"], 1),
                  "ratio": round(result["ratio"], 3)}
    return found


def published_table(document):
    options, rows = document["options"], {}
    for row in document["rows"]:
        if row["bytes"] > 0:
            rows.setdefault(row["collective"], []).append(published_row(row))
    layout = {"ranks": options["nranks"], "processes": options["processes"], "threads": options["threads"],
              "launch": "graph" if options["graph_launches"] else "stream", "iterations": options["iterations"],
              "rounds": options["rounds"]}
    return {"layout": layout, "rows": rows}


def published_group(document):
    ranks, row = document["options"]["nranks"], published_row(document["rows"][0])
    return {"what": f"{ranks} x {ranks} messages of {GROUP_BYTES // ranks / MIB:.3g} MiB in one group",
            **{key: row[key] for key in ("us", "nccl_us") if key in row}, "device_memory": document["device_memory"]}


def scrub(value):
    """Without the folders of the machine that measured, and without who built its driver."""
    if isinstance(value, dict):
        return {key: scrub(each) for key, each in value.items()}
    if isinstance(value, list):
        return [scrub(each) for each in value]
    if isinstance(value, str):
        value = re.sub(r"\s*\([\w.-]*@[\w.-]*\)\s*", "", value)
        # What is left of a path says what it is: the parts from the package, the build or the script on, else its name.
        for first in ("nvidia/nccl/lib/", "build/", "scripts/"):
            value = re.sub(rf"(?<![^\s=])/\S*?/({first}\S*)", r"\1", value)
        value = re.sub(r"(?<![^\s=])/\S*?([^/\s]+)/?(?=\s|$)", r"\1", value)
    return value


def tables_of(documents):
    """The measured rows of every document that has some."""
    tables = {name: published_table(document) for name, document in sorted(documents.items()) if TABLES.fullmatch(name)}
    return tables | {name: published_group(document) for name, document in documents.items()
                     if name.startswith("group_") and document["rows"]}


def document_of(results, others):
    summary, documents = results["summary"], results["documents"]
    first = documents["every_gpu"]
    speeds = {name: document for name, document in documents.items() if TABLES.fullmatch(name)}
    if not speeds:
        raise SystemExit("gpu-check: these results have no speed; scripts/gpu-check --speed measures it")
    tables = tables_of(documents)
    verified = {}
    for each in (results, *others):
        if correct := each["summary"]["correctness"]:
            verified = {"date": each["summary"]["date"], "command": each["summary"]["command"], **correct,
                        "seconds": each["summary"]["seconds"]}
    run = next(iter(speeds.values()))["run"]
    document = {"date": summary["date"], "command": summary["command"], "machine": first["machine"], "library": run["library"],
                "vs": run.get("vs"), "schedule_step": summary["schedule_step"],
                "goals": [goal for each in (results, *others) for goal in each["summary"]["goals"]],
                "resources": summary["resources"], **({"correctness": verified} if verified else {}), "tables": tables}
    if failed := [name for each in (results, *others) for name in each["summary"]["failed"]]:
        document["failed"] = failed
    if fallen := next((each["summary"]["fine"] for each in (results, *others) if each["summary"]["fine"]), None):
        document["fine"] = fallen
    return scrub(document)


def as_text(document):
    """JSON with a line per measured row."""
    text = json.dumps(document, indent=1)
    return ROW.sub(lambda row: re.sub(r"\s*\n\s*", " ", row[0]).replace("{ ", "{").replace(" }", "}"), text) + "\n"


def readme_table(speeds):
    """Markdown: microseconds, and NCCL's time divided by ours."""
    columns = [name for name in TABLE_COLUMNS if name in speeds.by_collective]
    lines = ["| size | " + " | ".join(columns) + " |", "|---:|" + "---:|" * len(columns)]
    for size in TABLE_SIZES:
        if size not in speeds.sizes():
            continue
        cells = []
        for name in columns:
            result = speeds.by_collective[name].get(size)
            cell = f"{result['time_us']:.{1 if result['time_us'] < 100 else 0}f}" if result else ""
            cells.append(cell + (f" ({result['ratio']:.2f})" if result and "ratio" in result else ""))
        lines.append(f"| {text_of(size)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def publish(paths, root):
    """`paths`: of the speed first, then of what belongs beside it (a run of --correctness, of --fine). Writes below `root`."""
    results, *others = [load(path) for path in paths]
    document = document_of(results, others)
    machine = document["machine"]
    written = root / "bench" / "results" / f"{name_of(machine)}_collectives.json"
    images = root / "docs" / "images"
    for folder in (written.parent, images):
        folder.mkdir(parents=True, exist_ok=True)
    written.write_text(as_text(document))
    draw_plots(document, lambda name: images / f"{name}_{name_of(machine)}.svg")
    print(f"wrote {written} and {images}/*_{name_of(machine)}.svg")
    if "failed" in document:
        print(f"not all of it passed, which the file says: {', '.join(document['failed'])}")
    for (ranks, launch), speeds in all_speeds(results["documents"], gpus_of(machine)).items():
        print(f"\n{ranks} ranks, {LAUNCHES[launch]}; us (NCCL's time / ours)\n\n{readme_table(speeds)}")
