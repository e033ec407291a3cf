#!/usr/bin/env python3
"""Draws results of `niccolite perf -J` as an SVG: the latency of small sizes, the bus bandwidth of large ones, and the ratio to the other
library.

  bench/plot.py result.json [more.json ...] -o plot.svg [--collective NAME] [--value time|busbw] [--limit "peer copy=392"]

Each file gives a curve of its library, and one of the library named by --vs if there was one. Curves of several files are
named after their files. --value draws one of the charts alone, over all sizes. Needs nothing but Python.
`niccolite perf --svg` draws the same charts of one run.
"""

import argparse
import html
import json
import math
import pathlib

WIDTH, MARGIN, HEADER, PANEL_HEIGHT, LEGEND, PANEL_GAP = 1080, 28, 78, 300, 44, 22
TOP, LEFT, BOTTOM, RIGHT = 40, 52, 42, 16  # room inside a panel for its title and for the labels of values and sizes
COLORS = ("#3367b0", "#c9601a", "#2f8a4c", "#7a4fae", "#1b8a94", "#b83a4b", "#8a6d1c", "#b5488c")
LAST_OF_LATENCY = 64 << 10  # beyond it, bandwidth says more than time
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Curve:
    """The results of one library: a colour, a name and (bytes, microseconds, GB/s) by ascending size."""

    def __init__(self, name, points, color=COLORS[0]):
        self.name, self.points, self.color = name, sorted(points), color


class Panel:
    """One chart: lines of (colour, [(size, value)])."""

    def __init__(self, title, lines, limit=None, is_ratio=False):
        self.title, self.limit, self.is_ratio = title, limit, is_ratio
        self.lines = [(color, points) for color, points in lines if points]
        values = [value for _, points in self.lines for _, value in points]
        self.lowest = min([0.9, *values]) if is_ratio else 0
        self.highest = max([1.1 if is_ratio else 0, *values, *([limit[1] * 1.04] if limit else [])])


def size_label(size):
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return f"{size:g}"


def step_of(span):
    """The distance between marks of an axis: 1, 2 or 5 times a power of ten."""
    least = max(span, 1e-6) / 6
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


class Axes:
    """The places of sizes (logarithmic) and values (linear) in a panel."""

    def __init__(self, panel, left, top, width):
        sizes = [size for _, points in panel.lines for size, _ in points]
        self.first, self.last = math.log2(min(sizes)), math.log2(max(sizes))
        self.step = step_of(panel.highest - panel.lowest)
        # In steps, not rounded, so that the chart has no empty edge.
        self.low = panel.lowest / self.step
        self.high = self.low + max((panel.highest - panel.lowest) * 1.04 / self.step, 1e-6)
        self.left, self.right, self.top, self.bottom = left + LEFT, left + width - RIGHT, top + TOP, top + PANEL_HEIGHT - BOTTOM

    def x(self, size):
        if self.last <= self.first:
            return (self.left + self.right) / 2
        return self.left + (math.log2(size) - self.first) / (self.last - self.first) * (self.right - self.left)

    def y(self, value):
        return self.bottom - (value / self.step - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def sizes(self):
        first, last = math.ceil(self.first - 1e-9), math.floor(self.last + 1e-9)
        return [2.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 7)))] or [2.0**self.first]

    def values(self):
        return [number * self.step for number in range(math.ceil(self.low - 1e-9), math.floor(self.high) + 1)]


def draw_panel(panel, left, width):
    axes = Axes(panel, left, HEADER, width)
    out = [f'<rect x="{left:.1f}" y="{HEADER}" width="{width:.1f}" height="{PANEL_HEIGHT}" rx="8" fill="#f5f7f9"/>',
           f'<text x="{left + 14:.1f}" y="{HEADER + 23}" font-weight="600" fill="#3a4652" text-anchor="start">{html.escape(panel.title)}</text>']
    if panel.is_ratio and axes.y(1) < axes.bottom:
        out.append(f'<rect x="{axes.left:.1f}" y="{axes.y(1):.1f}" width="{axes.right - axes.left:.1f}" '
                   f'height="{axes.bottom - axes.y(1):.1f}" fill="#f7e3e5"/>')
    for value in axes.values():
        out.append(f'<path d="M{axes.left:.1f} {axes.y(value):.1f}H{axes.right:.1f}" stroke="#dfe4e9"/>'
                   f'<text x="{axes.left - 7:.1f}" y="{axes.y(value) + 4:.1f}" font-size="11" fill="#7a8794" text-anchor="end">{value:g}</text>')
    for size in axes.sizes():
        out.append(f'<path d="M{axes.x(size):.1f} {axes.bottom:.1f}v4" stroke="#9aa5b0"/>'
                   f'<text x="{axes.x(size):.1f}" y="{axes.bottom + 17:.1f}" font-size="11" fill="#7a8794">{size_label(size)}</text>')
    out.append(f'<text x="{(axes.left + axes.right) / 2:.1f}" y="{axes.bottom + 33:.1f}" font-size="11" fill="#9aa5b0">size in bytes</text>')
    if panel.limit:
        name, value = panel.limit
        out.append(f'<path d="M{axes.left:.1f} {axes.y(value):.1f}H{axes.right:.1f}" stroke="#b07a1e" stroke-dasharray="5 4"/>'
                   f'<text x="{axes.left + 4:.1f}" y="{axes.y(value) - 5:.1f}" font-size="11" fill="#b07a1e" text-anchor="start">'
                   f"{html.escape(name)}</text>")
    for color, points in reversed(panel.lines):  # the first lies above the others
        path = " ".join(f"{axes.x(size):.1f},{axes.y(value):.1f}" for size, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{axes.x(size):.1f}" cy="{axes.y(value):.1f}" r="2.6" fill="{color}"><title>{size_label(size)}: {value:.4g}</title></circle>'
                for size, value in points]
    return out


def ratio_lines(pairs):
    """For (ours, other): the other library's time divided by ours, where both have a size."""
    lines = []
    for ours, other in pairs:
        times = {size: time for size, time, _ in other.points}
        lines.append((ours.color, [(size, times[size] / time) for size, time, _ in ours.points if size in times]))
    return lines


def bandwidth_limit(curves, limit):
    if limit:
        return f"{limit[0]} {limit[1]:g} GB/s", limit[1]
    highest = max((bandwidth for curve in curves for *_, bandwidth in curve.points), default=0)
    return (f"highest {highest:.4g} GB/s", highest) if highest > 0 else None


def panels_of(curves, pairs, limit, value=None):
    def times(takes):
        return [(curve.color, [(size, time) for size, time, _ in curve.points if takes(size)]) for curve in curves]

    def bandwidths(takes):
        return [(curve.color, [(size, bandwidth) for size, _, bandwidth in curve.points if takes(size)]) for curve in curves]

    panels = []
    if value != "busbw":
        panels.append(Panel("Latency, microseconds", times(lambda size: value or size <= LAST_OF_LATENCY)))
    if value != "time":
        panels.append(Panel("Bus bandwidth, GB/s", bandwidths(lambda size: value or size >= LAST_OF_LATENCY), bandwidth_limit(curves, limit)))
    if not value:
        panels.append(Panel("Ratio: the other library's time / ours", ratio_lines(pairs), ("equal", 1), is_ratio=True))
    return [panel for panel in panels if panel.lines]


def draw(curves, pairs, title, subtitle, limit=None, value=None):
    """An SVG. `pairs`: (ours, other) for the chart of ratios; `limit`: a name and GB/s, or None; `value`: one chart alone."""
    panels = panels_of(curves, pairs, limit, value)
    height = HEADER + PANEL_HEIGHT + LEGEND
    width = (WIDTH - 2 * MARGIN - PANEL_GAP * (len(panels) - 1)) / max(len(panels), 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="{FONT}" '
           'font-size="12" text-anchor="middle">',
           f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
           f'<text x="{MARGIN}" y="38" font-size="20" font-weight="600" fill="#1c2733" text-anchor="start">{html.escape(title)}</text>',
           f'<text x="{MARGIN}" y="60" font-size="13" fill="#5b6875" text-anchor="start">{html.escape(subtitle)}</text>']
    for number, panel in enumerate(panels):
        out += draw_panel(panel, MARGIN + number * (width + PANEL_GAP), width)
    x, y = MARGIN, height - 18
    for curve in curves:
        out.append(f'<path d="M{x} {y - 4}h22" stroke="{curve.color}" stroke-width="2.5"/>'
                   f'<text x="{x + 29}" y="{y}" fill="#5b6875" text-anchor="start">{html.escape(curve.name)}</text>')
        x += 70 + round(7.2 * len(curve.name))
    return "\n".join([*out, "</svg>", ""])


def collective_of(row):
    return row.get("collective", "all_reduce")  # files of schema niccolite-perf-1 know no other


def only_collective(documents):
    names = {collective_of(row) for document in documents for row in document["rows"]}
    if len(names) != 1:
        raise SystemExit(f"plot.py: choose with --collective one of {', '.join(sorted(names)) or 'none'}")
    return names.pop()


def curves_of(path, document, collective, place, is_alone):
    """The curve of a file's library, and that of the other one if there was one."""
    run = document["run"]
    prefix = "" if is_alone else pathlib.Path(path).stem + ": "
    ours, other = [], []
    for row in document["rows"]:
        result = row[place]
        if not result or row["bytes"] == 0 or collective_of(row) != collective:
            continue
        ours.append((row["bytes"], result["time_us"], result["busbw_gbs"]))
        if "vs" in result:
            other.append((row["bytes"], result["vs"]["time_us"], result["vs"]["busbw_gbs"]))
    if not ours:
        raise SystemExit(f"plot.py: {path} has no {place} results of {collective}")
    curves = [Curve(f"{prefix}Niccolite {run['library']['version']}", ours)]
    return [*curves, Curve(f"{prefix}NCCL {run['vs']['version']}", other)] if other else curves


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files of niccolite perf")
    parser.add_argument("-o", "--output", required=True, help="SVG file to write")
    parser.add_argument("--collective", help="whose rows; needed where the files hold several")
    parser.add_argument("--value", choices=("time", "busbw"), help="one chart alone, over all sizes")
    parser.add_argument("--place", choices=("out_of_place", "in_place"), default="out_of_place")
    parser.add_argument("--limit", metavar="NAME=VALUE", help="a line in the chart of bus bandwidth, GB/s (default: the highest value)")
    parser.add_argument("--title", help="default: the collective, with ranks and devices of the first file below it")
    arguments = parser.parse_args()
    documents = [json.loads(pathlib.Path(path).read_text()) for path in arguments.files]
    collective = arguments.collective or only_collective(documents)
    curves, pairs = [], []
    for path, document in zip(arguments.files, documents):
        found = curves_of(path, document, collective, arguments.place, len(documents) == 1)
        curves += found
        if len(found) == 2:
            pairs.append(found)
    for number, curve in enumerate(curves):
        curve.color = COLORS[number % len(COLORS)]
    limit = None
    if arguments.limit:
        name, _, value = arguments.limit.rpartition("=")
        limit = (name or "limit", float(value))
    first = documents[0]
    devices = ", ".join(f"{count} x {name}" for name, count in first["machine"]["ranks_on"].items())
    mode = "graph replays" if first["options"]["graph_launches"] else "stream launches"
    picture = draw(curves, pairs, arguments.title or collective, f"{devices}, {mode}, {arguments.place.replace('_', ' ')}", limit, arguments.value)
    pathlib.Path(arguments.output).write_text(picture)


if __name__ == "__main__":
    main()
