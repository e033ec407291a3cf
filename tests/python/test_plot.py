"""Pictures."""

import os
import subprocess
import sys

import pytest
from niccolite import plot

ROWS = {"rows": [{"bytes": size, "collective": "all_reduce",
                  "out_of_place": {"time_us": size / 10, "busbw_gbs": 1.0}, "in_place": None}
                 for size in (1024, 4096)]}


def test_schedules_show_themselves():
    schedule = plot.Schedule("all_reduce", ranks=3)
    assert "all_reduce" in str(schedule)
    assert schedule._repr_svg_().startswith("<svg")
    assert schedule.check()
    with pytest.raises(ValueError, match="nothing"):
        plot.Schedule("nothing")


def test_topologies_show_themselves(tmp_path):
    try:
        topology = plot.Topology()
    except ValueError as error:
        if "is no subcommand" not in str(error):
            raise
        pytest.skip("this build has no `niccolite topology`")
    assert str(topology) and "<svg" in topology._repr_svg_()
    file = tmp_path / "machine.xml"
    file.write_text(topology.xml())
    assert str(plot.Topology(file)) == str(topology)
    with pytest.raises(ValueError):
        plot.Topology(tmp_path / "none.xml")


STUCK = """
import os, numpy as np, nccl.core as nccl
from nccl.virtual import run
def main(comm):
    x = np.ones(4)
    comm.allreduce(x, x, nccl.SUM)
    if comm.rank != 1: comm.allreduce(x, x, nccl.SUM)
    while not os.listdir(os.environ['NICCOLITE_DUMP']): pass
try: run(main, ranks=3)
except RuntimeError: pass
"""


def test_dumps_show_who_waited_for_whom(tmp_path):
    environment = {**os.environ, "NICCOLITE_DUMP": f"{tmp_path}/"}
    subprocess.run([sys.executable, "-c", STUCK], env=environment, check=True, timeout=60)
    dumps = plot.Dumps(tmp_path)
    assert "rank 1" in str(dumps) and "has not called it" in str(dumps)
    assert dumps.json()[0]["culprit"] == 1
    shown = dumps._repr_html_()
    assert shown.startswith("<svg") and "has not called it" in shown.partition("<pre>")[2]
    with pytest.raises(ValueError, match="no dump"):
        plot.Dumps(tmp_path / "none")


def test_curves_of_perf():
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed").use("Agg")
    axes = plot.perf(ROWS)
    assert axes.get_legend_handles_labels()[1] == ["all_reduce"]
    assert axes.lines[0].get_xydata().tolist() == [[1024, 102.4], [4096, 409.6]]


def test_files_without_rows_are_refused():
    for call in [lambda: plot.perf({}), lambda: plot.perf(ROWS, place="in_place"),
                 lambda: plot.perf(ROWS, value="speed"), lambda: plot.tune({"points": []})]:
        with pytest.raises(ValueError):
            call()
