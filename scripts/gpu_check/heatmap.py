"""Heat maps of ratios that fit a page: each field shows the least ratio of the cells that it stands for."""

import html

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, MARGIN = 52, 16, 260, 132, 28
BANDS = ((64 << 10, "to 64 KiB"), (4 << 20, "to 4 MiB"), (1 << 62, "above 4 MiB"))
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def band_of(size):
    """A number and a name for a range of sizes."""
    return next((number, name) for number, (last, name) in enumerate(BANDS) if size <= last)


def color_of(ratio):
    """Red below 1, white at 1, green above; full at a half and at two."""
    if ratio is None:
        return "#dddddd"
    if ratio < 1:
        share = min(1.0, (1 - ratio) * 2)
        return f"#ff{round(255 - 175 * share):02x}{round(255 - 185 * share):02x}"
    share = min(1.0, ratio - 1)
    return f"#{round(255 - 200 * share):02x}{round(255 - 80 * share):02x}{round(255 - 160 * share):02x}"


def draw_scale(x, y):
    out = [f'<text x="{x}" y="{y}" fill="#5b6875">NCCL\'s time / ours, the least of each field:</text>']
    x += 270
    for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        out.append(f'<rect x="{x}" y="{y - 12}" width="44" height="16" fill="{color_of(ratio)}" stroke="#dfe4e9"/>'
                   f'<text x="{x + 22}" y="{y}" text-anchor="middle" font-size="10">{ratio:g}</text>')
        x += 46
    out.append(f'<text x="{x + 8}" y="{y}" fill="#5b6875">below 1 NCCL is faster; grey: ours alone was measured</text>')
    return out


def draw_block(rows, columns, fields, x0):
    """The rows at x0, with the labels of their columns above them."""
    out = []
    for number, lines in enumerate(columns.values()):
        x = x0 + LEFT + CELL_WIDTH * (number + 0.5)
        out += [f'<text x="{x:g}" y="{TOP - 30 + 12 * line}" text-anchor="middle" font-size="9.5" fill="#3a4652">{html.escape(text)}</text>'
                for line, text in enumerate(lines)]
    for number, (row, label) in enumerate(rows.items()):
        y = TOP + CELL_HEIGHT * number
        out.append(f'<text x="{x0 + LEFT - 8}" y="{y + 12}" text-anchor="end" font-size="10.5" fill="#3a4652">{html.escape(label)}</text>')
        for place, column in enumerate(columns):
            ratios = fields.get((row, column))
            if not ratios:
                continue
            least = min((ratio for ratio in ratios if ratio is not None), default=None)
            x = x0 + LEFT + CELL_WIDTH * place
            out.append(f'<rect x="{x}" y="{y}" width="{CELL_WIDTH - 1}" height="{CELL_HEIGHT - 1}" fill="{color_of(least)}">'
                       f"<title>{html.escape(label)}: {len(ratios)} measurements</title></rect>")
            if least is not None:
                out.append(f'<text x="{x + CELL_WIDTH / 2:g}" y="{y + 12}" text-anchor="middle" font-size="10">{least:.2f}</text>')
    return out


def blocks_of(rows, columns, fields):
    """(rows, columns) of the parts that stand side by side: rows with fields in few columns have only these columns."""
    places = {row: tuple(column for column in columns if (row, column) in fields) for row in rows}
    few = {row: label for row, label in rows.items() if len(places[row]) <= len(columns) / 2}
    used = {column for row in few for column in places[row]}
    if not few or len(few) == len(rows) or len(used) > len(columns) / 2:
        return [(rows, columns)]
    many = {row: label for row, label in rows.items() if row not in few}
    return [(many, columns), (few, {column: lines for column, lines in columns.items() if column in used})]


def draw(title, rows, columns, fields):
    """An SVG. `rows`: labels by key; `columns`: lines of a label by key; `fields`: the ratios (or None) of each (row, column)."""
    blocks = blocks_of(rows, columns, fields)
    width = max(sum(LEFT + CELL_WIDTH * len(across) for _, across in blocks) + MARGIN, 960)
    height = TOP + CELL_HEIGHT * max(len(down) for down, _ in blocks) + MARGIN
    measured = [ratio for ratios in fields.values() for ratio in ratios if ratio is not None]
    behind = sum(ratio < 1 for ratio in measured)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="{FONT}" font-size="12">',
           f'<rect width="{width}" height="{height}" rx="10" fill="white"/>',
           f'<text x="{MARGIN}" y="38" font-size="20" font-weight="600" fill="#1c2733">{html.escape(title)}</text>',
           f'<text x="{MARGIN}" y="58" font-size="13" fill="#5b6875">{len(measured)} measurements, {behind} of them slower than NCCL</text>',
           *draw_scale(MARGIN, 80)]
    x = 0
    for down, across in blocks:
        out += draw_block(down, across, fields, x)
        x += LEFT + CELL_WIDTH * len(across)
    return "\n".join([*out, "</svg>"]) + "\n"
