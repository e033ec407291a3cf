"""Pictures of measurements, algorithms, machines and dumps of the command ``niccolite``.

    >>> from niccolite import plot
    >>> plot.perf("result.json")            # of: niccolite perf -J result.json
    >>> plot.tune("tuned.json")             # of: niccolite tune -J tuned.json
    >>> plot.Schedule("all_reduce", ranks=4)  # shows itself in a notebook
    >>> plot.Topology()                     # this machine, too; or a file in NCCL's form
    >>> plot.Dumps("dumps/")                # the flight recorder's: who waited for whom

Curves need Matplotlib (``pip install niccolite[plot]``); schedules, topologies and dumps need nothing.
"""

from __future__ import annotations

import html
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import niccolite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Dumps", "Schedule", "Topology", "perf", "tune"]

Source = Union[str, "os.PathLike[str]", dict[str, Any]]

_VALUES = {"time": ("time_us", "time (us)"), "busbw": ("busbw_gbs", "bus bandwidth (GB/s)")}


def _load(source: Source) -> dict[str, Any]:
    if isinstance(source, dict):
        return source
    with open(source, encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


def _axes(axes: Axes | None, title: str, y_label: str) -> Axes:
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ModuleNotFoundError(
                "curves need Matplotlib: pip install matplotlib"
            ) from None
        axes = pyplot.subplots()[1]
    axes.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel=y_label, title=title)
    axes.grid(visible=True, which="major", alpha=0.3)
    return axes


def perf(
    source: Source, value: str = "time", place: str = "out_of_place", axes: Axes | None = None
) -> Axes:
    """Draws each collective of a ``niccolite perf --json`` file over the size, beside NCCL's if the file has them.

    `value`: "time" (microseconds) or "busbw" (GB/s). `place`: "out_of_place" or "in_place".
    ValueError: the file has no such rows.
    """
    if value not in _VALUES:
        raise ValueError(f"value is {value!r}; it must be one of {', '.join(_VALUES)}")
    key, label = _VALUES[value]
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in _load(source).get("rows", []):
        result = row.get(place)
        if not result or not row["bytes"]:
            continue
        name = row.get("collective", "all_reduce")
        curves.setdefault(name, []).append((row["bytes"], result[key]))
        if "vs" in result:
            curves.setdefault(f"{name}, NCCL", []).append((row["bytes"], result["vs"][key]))
    if not curves:
        raise ValueError(f"there are no {place} rows: is this a file of niccolite perf --json?")
    axes = _axes(axes, "niccolite perf", label)
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points)), marker=".", label=name)
    axes.legend()
    return axes


def tune(source: Source, axes: Axes | None = None) -> Axes:
    """Draws the measured times of a ``niccolite tune -J`` file: a curve for each variant.

    ValueError: the file has no points.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in _load(source).get("points", []):
        name = " ".join(
            str(point[key]) for key in ("collective", "algorithm", "protocol", "channels") if key in point
        )
        curves.setdefault(name, []).append((point["bytes"], point["time_us"]))
    if not curves:
        raise ValueError("there are no points: is this a file of niccolite tune -J?")
    axes = _axes(axes, "niccolite tune", _VALUES["time"][1])
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points)), marker=".", label=name)
    if len(curves) <= 12:
        axes.legend()
    return axes


def _run(arguments: Sequence[str], good: Sequence[int] = (0,)) -> str:
    """The output of the command ``niccolite``. ValueError: its exit status is not `good`; with its message."""
    command = os.path.join(niccolite.get_folder(), "bin", "niccolite")
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in good:
        raise ValueError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _written(arguments: Sequence[str], option: str, good: Sequence[int] = (0,)) -> str:
    """The text that the command writes into the file that `option` names."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "written")
        _run([*arguments, option, path], good)
        with open(path, encoding="utf-8") as file:
            return file.read()


class Schedule:
    """The instructions of an algorithm for each rank. In a notebook it shows itself; ``str()`` is the text.

    `collective` and `algorithm` (None: the first one) as ``niccolite schedule --list`` names them.
    ValueError: there is no such schedule.
    """

    def __init__(
        self, collective: str, algorithm: str | None = None, *, ranks: int = 4, root: int = 0
    ) -> None:
        self._arguments = [collective, "--ranks", str(ranks), "--root", str(root)]
        if algorithm is not None:
            self._arguments += ["--algorithm", algorithm]
        self._text = _run(["schedule", *self._arguments])

    def check(self) -> str:
        """Proves that the result is right and that nothing deadlocks. ValueError: it is not so."""
        return _run(["schedule", *self._arguments, "--check"])

    def svg(self) -> str:
        """The picture."""
        return _written(["schedule", *self._arguments], "--svg")

    _repr_svg_ = svg

    def __str__(self) -> str:
        return self._text


class Topology:
    """GPUs, network devices, and the links between them. In a notebook it shows itself; ``str()`` is the text.

    `source`: a topology file in NCCL's form (as NCCL_TOPO_DUMP_FILE writes it); None: this machine, with virtual GPUs if
    it has no others. ValueError: the file is no topology file.
    """

    def __init__(self, source: Union[str, os.PathLike[str], None] = None) -> None:
        self._arguments = ["topology"] if source is None else ["topology", "--from", os.fspath(source)]
        self._text = _run(self._arguments)

    def svg(self) -> str:
        """The picture."""
        return _written(self._arguments, "--svg")

    def xml(self) -> str:
        """The file in NCCL's form, for NCCL_TOPO_FILE."""
        return _written(self._arguments, "--xml")

    _repr_svg_ = svg

    def __str__(self) -> str:
        return self._text


class Dumps:
    """The flight recorder's files: which rank all others wait for. In a notebook they show the last seconds.

    `source`: the folder that NICCOLITE_DUMP named, with the files of all processes, or one file. ``str()``
    is the verdict and each rank's state. ValueError: no dump can be read.
    """

    _FOUND = (0, 1)  # 1: an operation stands still

    def __init__(self, source: Union[str, os.PathLike[str]], *, seconds: float = 10) -> None:
        self._arguments = ["inspect", os.fspath(source), "--seconds", str(seconds)]
        self._text = _run(self._arguments, self._FOUND)

    def svg(self) -> str:
        """The last `seconds` of the first communicator: a line for each rank."""
        return _written(self._arguments, "--svg", self._FOUND)

    def json(self) -> Any:
        """The verdicts and the ranks' states as lists and dictionaries."""
        return json.loads(_run([*self._arguments, "--json"], self._FOUND))

    def _repr_html_(self) -> str:
        return f"{self.svg()}<pre>{html.escape(self._text)}</pre>"

    def __str__(self) -> str:
        return self._text
