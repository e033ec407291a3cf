"""niccolite.schedule: algorithms in Python, proved, run on virtual GPUs, and mistakes with their lines."""

import inspect

import numpy as np
import pytest
from niccolite.schedule import Algorithm, ScheduleError


def _ring(ranks):
    ring = Algorithm("all_reduce", ranks=ranks, blocks=ranks, name="py_ring")
    for block in range(ranks):
        chunk = ring.chunk((block + 1) % ranks, "input", block)
        for hop in range(2, ranks + 1):
            chunk = ring.chunk((block + hop) % ranks, "input", block).reduce(chunk)
        for hop in range(1, ranks):
            chunk = chunk.send((block + hop) % ranks)
    return ring


def _direct(collective, ranks):
    direct = Algorithm(collective, ranks=ranks, name="py_direct")
    for rank in range(ranks):
        own = direct.chunk(rank, "input", rank if collective == "all_to_all" else 0)
        own.copy("output", rank)
        for distance in range(1, ranks):
            peer = (rank + distance) % ranks
            direct.chunk(rank, "input", peer if collective == "all_to_all" else 0).send(peer, "output", rank)
    return direct


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_ring_in_seven_lines_adds(ranks):
    ring = _ring(ranks)
    assert "proved right" in ring.check()
    inputs = [np.arange(1003, dtype=np.int32) * (rank + 1) for rank in range(ranks)]
    for output in ring.run(inputs):
        np.testing.assert_array_equal(output, sum(inputs))


def test_moves_of_blocks():
    inputs = [np.arange(300, dtype=np.float32) + 1000 * rank for rank in range(3)]
    for output in _direct("all_gather", 3).run(inputs):
        np.testing.assert_array_equal(output, np.concatenate(inputs))
    for rank, output in enumerate(_direct("all_to_all", 3).run(inputs)):
        np.testing.assert_array_equal(output, np.concatenate([each[rank * 100:][:100] for each in inputs]))


def test_workers_stand_side_by_side():
    algorithm = Algorithm("all_reduce", ranks=2, blocks=2, name="py_halves")
    for block in range(2):
        with algorithm.parallel(block):
            total = algorithm.chunk(block, "input", block).reduce(algorithm.chunk(1 - block, "input", block))
            total.send(1 - block)
    assert "proved right" in algorithm.check()
    assert algorithm.to_json().count('"steps"') == 4
    np.testing.assert_array_equal(algorithm.run(count=10)[0], np.arange(10) * 2 + 1)


def test_pictures_and_prices(tmp_path):
    ring = _ring(4)
    assert ring.draw()._repr_svg_().startswith("<svg")
    prices = ring.simulate("64K")
    assert set(prices) == {"LL", "LL128", "Simple"} and all(each > 0 for each in prices.values())
    ring.save(tmp_path / "ring.json")
    assert (tmp_path / "ring.json").read_text() == ring.to_json()


def _line_of(text):
    lines, first = inspect.getsourcelines(inspect.getmodule(_line_of))
    return next(number for number, line in enumerate(lines, max(first, 1)) if text in line and "_line_of" not in line)


def test_mistakes_name_their_line():
    algorithm = Algorithm("all_reduce", ranks=3, name="py_wrong")
    algorithm.chunk(0).reduce(algorithm.chunk(1)).send(1)  # rank 2 is left out
    with pytest.raises(ScheduleError, match=rf"test_schedule.py:{_line_of('rank 2 is left out')}: .*rank 2"):
        algorithm.check()
    with pytest.raises(ScheduleError, match="twice"):
        algorithm.chunk(0).reduce(algorithm.chunk(0))
    with pytest.raises(ScheduleError, match=r"output block 0 of rank 2 is read, and nothing is in it yet"):
        algorithm.chunk(2, "output")
    with pytest.raises(ScheduleError, match="no rank 3 among 3"):
        algorithm.chunk(3)
    with pytest.raises(ScheduleError, match="overwritten since"):
        old = algorithm.chunk(0, "output")
        algorithm.chunk(0, "input").copy("output")
        old.send(2)
    with pytest.raises(ScheduleError, match="small letters"):
        Algorithm("all_reduce", ranks=2, name="My ring")
    with pytest.raises(ScheduleError, match="only moves data"):
        gather = Algorithm("all_gather", ranks=2, name="x")
        gather.chunk(0).reduce(gather.chunk(1))
    with pytest.raises(ScheduleError, match="of the algorithm x"):
        algorithm.chunk(0).reduce(gather.chunk(1))
    with pytest.raises(ScheduleError, match="for 3 ranks, not 4"):
        algorithm.run(ranks=4)
