#!/usr/bin/env python3
"""Draws results of `niccolite perf -J` as an SVG: time or bus bandwidth over size, both logarithmic.

  bench/plot.py result.json [more.json ...] -o plot.svg [--collective NAME] [--value time|busbw] [--limit "peer copy=392"]

Each file gives a curve of its library, and one of the library named by --vs if there was one. Curves of several files are
named after their files. Needs nothing but Python.
"""

import argparse
import html
import json
import math
import pathlib

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 44, 60
COLORS = ("#0b6e4f", "#c1440e", "#2b59c3", "#8d6a9f", "#b58900", "#444444")


def size_label(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def collective_of(row):
    return row.get("collective", "all_reduce")  # files of schema niccolite-perf-1 know no other


def only_collective(documents):
    names = {collective_of(row) for document in documents for row in document["rows"]}
    if len(names) != 1:
        raise SystemExit(f"plot.py: choose with --collective one of {', '.join(sorted(names)) or 'none'}")
    return names.pop()


def curves_of(path, document, collective, place, value, is_alone):
    key = {"time": "time_us", "busbw": "busbw_gbs"}[value]
    run = document["run"]
    prefix = "" if is_alone else pathlib.Path(path).stem + ": "
    ours, other = [], []
    for row in document["rows"]:
        result = row[place]
        if not result or row["bytes"] == 0 or collective_of(row) != collective:
            continue
        ours.append((row["bytes"], result[key]))
        if "vs" in result:
            other.append((row["bytes"], result["vs"][key]))
    if not ours:
        raise SystemExit(f"plot.py: {path} has no {place} results of {collective}")
    curves = [(f"{prefix}Niccolite {run['library']['version']}", ours)]
    if other:
        curves.append((f"{prefix}NCCL {run['vs']['version']}", other))
    return [(name, [(x, y) for x, y in points if y > 0]) for name, points in curves]


class Axes:
    """Maps sizes and values to the picture; both logarithmic."""

    def __init__(self, points):
        sizes = [x for x, _ in points]
        values = [y for _, y in points]
        self.x = (math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1))
        self.y = (math.floor(math.log10(min(values)) * 3) / 3, math.ceil(math.log10(max(values)) * 3 + 0.2) / 3)

    def at(self, x, y):
        across = (math.log2(x) - self.x[0]) / (self.x[1] - self.x[0])
        up = (math.log10(y) - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def size_ticks(self):
        first, last = math.ceil(self.x[0]), math.floor(self.x[1])
        step = max(1, math.ceil((last - first) / 8))
        return [2**power for power in range(first, last + 1, step)]

    def value_ticks(self):
        ticks = [m * 10.0**e for e in range(math.floor(self.y[0]), math.ceil(self.y[1]) + 1) for m in (1, 2, 5)]
        return [tick for tick in ticks if self.y[0] <= math.log10(tick) <= self.y[1]]


def draw(curves, limits, title, label):
    axes = Axes([point for _, points in curves for point in points]
                + [(curves[0][1][0][0], value) for _, value in limits])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="24" font-size="15">{html.escape(title)}</text>']
    for size in axes.size_ticks():
        x, _ = axes.at(size, 10 ** axes.y[0])
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size_label(size)}</text>')
    for value in axes.value_ticks():
        _, y = axes.at(2 ** axes.x[0], value)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle:.0f}" y="{HEIGHT - 16}" text-anchor="middle">size of the larger buffer</text>')
    out.append(f'<text transform="translate(18 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{html.escape(label)}</text>')
    for name, value in limits:
        _, y = axes.at(2 ** axes.x[0], value)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#777" stroke-dasharray="6 4"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4:.1f}" fill="#777">{html.escape(name)} {value:g}</text>')
    for index, (name, points) in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        places = [axes.at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in places)
        y = TOP + 14 + 18 * index
        out.append(f'<line x1="{LEFT + 12}" x2="{LEFT + 36}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{LEFT + 42}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files of niccolite perf")
    parser.add_argument("-o", "--output", required=True, help="SVG file to write")
    parser.add_argument("--collective", help="whose rows; needed where the files hold several")
    parser.add_argument("--value", choices=("time", "busbw"), default="busbw")
    parser.add_argument("--place", choices=("out_of_place", "in_place"), default="out_of_place")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=VALUE", help="a dashed line, in the unit of the plot")
    parser.add_argument("--title", help="default: ranks and devices of the first file")
    arguments = parser.parse_args()
    documents = [json.loads(pathlib.Path(path).read_text()) for path in arguments.files]
    collective = arguments.collective or only_collective(documents)
    curves = []
    for path, document in zip(arguments.files, documents):
        curves += curves_of(path, document, collective, arguments.place, arguments.value, len(documents) == 1)
    limits = [(name, float(value)) for name, _, value in (limit.rpartition("=") for limit in arguments.limit)]
    first = documents[0]
    devices = ", ".join(f"{count} x {name}" for name, count in first["machine"]["ranks_on"].items())
    mode = "graph replay" if first["options"]["graph_launches"] else "stream launches"
    title = arguments.title or f"{collective}, {devices}, {mode}"
    label = "time (us)" if arguments.value == "time" else "bus bandwidth (GB/s)"
    pathlib.Path(arguments.output).write_text(draw(curves, limits, title, label))


if __name__ == "__main__":
    main()
