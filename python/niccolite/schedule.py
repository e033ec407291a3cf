"""Collective algorithms in a few lines of Python: written over chunks, proved, drawn, run, and saved for jobs.

    from niccolite.schedule import Algorithm

    ranks = 4
    ring = Algorithm("all_reduce", ranks=ranks, blocks=ranks, name="py_ring")
    for block in range(ranks):
        chunk = ring.chunk((block + 1) % ranks, "input", block)
        for hop in range(2, ranks + 1):
            chunk = ring.chunk((block + hop) % ranks, "input", block).reduce(chunk)
        for hop in range(1, ranks):
            chunk = chunk.send((block + hop) % ranks)
    ring.check()
    ring.save("py_ring.json")

Operations happen as if one after the other, in the order of the program; what no chunk orders runs at the same time. Each
rank does its part in this order, in one worker; ``with algorithm.parallel(1):`` puts operations into another worker, beside
the first. docs/algorithms.md has a tutorial, docs/schedule-file.md the form of the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Algorithm", "Chunk", "Picture", "ScheduleError"]

_CUT = ("all_reduce", "reduce", "broadcast")
_REDUCE = ("all_reduce", "reduce", "reduce_scatter")
_ROOTED = ("reduce", "broadcast", "gather", "scatter")
_COLLECTIVES = (*_CUT, "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


class ScheduleError(ValueError):
    """An algorithm is wrong. The message begins with the line of the Python program."""


@dataclasses.dataclass(frozen=True)
class _Line:
    """A place in the program."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def _caller() -> _Line:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return _Line(frame.f_code.co_filename, frame.f_lineno)


@dataclasses.dataclass
class _Instruction:
    line: _Line
    receive: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)  # sender, receiver, worker
    source: tuple[str, int] | None = None
    source_position: int = 0
    target: tuple[str, int] | None = None
    send: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    finish: bool = False
    block: int = 0

    def to_json(self, numbers: dict[tuple[int, int, int], int], is_cut: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if self.receive:
            result["receive"] = [numbers[each] for each in self.receive]
        if self.source is not None:
            result["source"] = list(self.source)
        if self.source_position:
            result["source_position"] = self.source_position
        if len(self.receive) + (self.source is not None) > 1:
            result["reduce"] = True
        if self.finish:
            result["finish"] = True
        if self.target is not None:
            result["target"] = list(self.target)
        if self.send:
            result["send"] = [numbers[each] for each in self.send]
        if is_cut:
            result["chunk_of"] = self.block
        return result


@dataclasses.dataclass(frozen=True)
class _Value:
    """What a block holds: a block of the input, of these ranks."""

    block: int
    ranks: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The content of a block of a rank's buffer, as it is at this point of the program."""

    algorithm: Algorithm
    rank: int
    buffer: str
    index: int
    _version: int = dataclasses.field(repr=False, default=0)

    def send(self, rank: int, buffer: str = "output", index: int | None = None) -> Chunk:
        """Copies it to a block of another rank: of the same number, unless ``index`` says another."""
        return self.algorithm._move([self], rank, buffer, self._index_at(rank, buffer) if index is None else index, False)

    def copy(self, buffer: str = "output", index: int | None = None) -> Chunk:
        """Copies it to another block of its rank."""
        return self.send(self.rank, buffer, index)

    def reduce(self, *others: Chunk, buffer: str = "output", index: int | None = None) -> Chunk:
        """Adds chunks of other ranks to it, and stores the sum in a block of its rank."""
        if not others:
            raise ScheduleError(f"{_caller()}: reduce() needs at least one chunk to add")
        index = self._index_at(self.rank, buffer) if index is None else index
        return self.algorithm._move([self, *others], self.rank, buffer, index, True)

    def _index_at(self, rank: int, buffer: str) -> int:
        if self.algorithm.collective == "all_gather" and buffer == "output" and self.buffer == "input":
            return self.rank
        if self.algorithm.collective == "reduce_scatter" and buffer == "output":
            return 0
        return self.index


class Picture:
    """A drawing of an algorithm, which notebooks show."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SVG file."""
        pathlib.Path(path).write_text(self.svg)


class Algorithm:
    """A collective algorithm for one number of ranks, to which operations on chunks are added.

    ``collective``: "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather" or "scatter".
    ``blocks``: the parts of the one buffer (of the first three; of the others there is one block of each rank).
    ``name``: small letters, digits and "_": what NCCL_ALGO selects. ``min_bytes``, ``max_bytes``, ``types`` (["half"]),
    ``machines``, ``priority``: the operations that it is for (docs/schedule-file.md).
    """

    def __init__(self, collective: str, *, ranks: int, name: str, blocks: int = 1, root: int = 0, **use: int | list[str]) -> None:
        if collective not in _COLLECTIVES:
            raise ScheduleError(f"{_caller()}: collective is {collective!r}, none of {', '.join(_COLLECTIVES)}")
        if re.fullmatch("[a-z0-9_]{1,48}", name) is None:
            raise ScheduleError(f"{_caller()}: name is {name!r}; it needs small letters, digits and '_'")
        unknown = set(use) - {"min_bytes", "max_bytes", "types", "machines", "priority"}
        if unknown:
            raise TypeError(f"Algorithm() has no argument {sorted(unknown)[0]!r}")
        if ranks < 1 or blocks < 1 or not 0 <= root < ranks:
            raise ScheduleError(f"{_caller()}: {ranks} ranks, {blocks} blocks and root {root} do not go together")
        self.collective, self.ranks, self.name, self.root = collective, ranks, name, root
        self.blocks = blocks if collective in _CUT else ranks
        self._use = use
        self._programs: list[dict[int, list[_Instruction]]] = [{} for _ in range(ranks)]
        self._contents: dict[tuple[int, str, int], tuple[_Value, int]] = {}  # value and version, of blocks
        self._writers: dict[tuple[int, str, int], tuple[int, int]] = {}  # worker and number of the instruction
        self._scratch = 0
        self._worker = 0

    def chunk(self, rank: int, buffer: str = "input", index: int = 0) -> Chunk:
        """What the block ``index`` of ``buffer`` ("input", "output", "scratch") of a rank holds now."""
        _, version = self._content(rank, buffer, index)
        return Chunk(self, rank, buffer, index, version)

    @contextlib.contextmanager
    def parallel(self, worker: int) -> Iterator[None]:
        """Operations in the body are done by worker ``worker`` of each rank (0: the first), beside the operations of other workers. No two
        workers of a rank may touch a block that one of them writes."""
        before, self._worker = self._worker, worker
        try:
            yield
        finally:
            self._worker = before

    # ---- what becomes of it

    def to_json(self) -> str:
        """The schedule file (docs/schedule-file.md)."""
        connections: dict[tuple[int, int, int], int] = {}
        for program in self._programs:
            for instructions in program.values():
                for instruction in instructions:
                    for each in (*instruction.receive, *instruction.send):
                        connections.setdefault(each, len(connections))
        is_cut = self.collective in _CUT
        document: dict[str, Any] = {
            "format": "niccolite schedule 1", "collective": self.collective, "algorithm": self.name,
            "ranks": self.ranks, "blocks": self.blocks, "root": self.root, "scratch_blocks": self._scratch,
            "partial_sums": self.collective in _REDUCE,
            "connections": [[sender, receiver, 0, tag] for sender, receiver, tag in connections],
            "programs": [[[{"steps": [step.to_json(connections, is_cut) for step in program[worker]]}
                           for worker in sorted(program)]] for program in self._programs]}
        if self._use:
            document["use"] = self._use
        return json.dumps(document, indent=1) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the schedule file, for a folder that NICCOLITE_ALGORITHMS names."""
        pathlib.Path(path).write_text(self.to_json())

    def check(self) -> str:
        """Proves that results are right and nothing deadlocks or races, for any data and timing; returns the sentence that
        says so. ScheduleError names the line whose instruction is wrong."""
        return self._command("--import").splitlines()[-1]

    def draw(self) -> Picture:
        """The algorithm as a picture, when it is right."""
        return Picture(self._command("--svg", "-", "--import"))

    def simulate(self, size: str | int = "1M", machine: str = "virtual") -> dict[str, float]:
        """The predicted microseconds of an operation of ``size`` by each protocol, on a kind of machine of
        ``niccolite explain``."""
        with self._folder() as folder:
            done = self._run(["explain", self.collective, "-b", str(size), "-g", str(self.ranks), "-m", machine, "--json"],
                             {"NICCOLITE_ALGORITHMS": folder, "NCCL_ALGO": self.name})
            rows = json.loads(done)["alternatives"]
        return {row["protocol"]: row["microseconds"] for row in rows
                if row["algorithm"] == self.name and row.get("microseconds") is not None}

    def run(self, inputs: Sequence[Any] | None = None, *, ranks: int | None = None, count: int = 1000) -> list[Any]:
        """Runs it on virtual GPUs, in a process of its own, and returns the output of each rank. ``inputs``: a NumPy array for
        each rank (default: ``count`` floats, rank + position). Sums are of the operation SUM."""
        import numpy

        if ranks not in (None, self.ranks):
            raise ScheduleError(f"{_caller()}: {self.name} is for {self.ranks} ranks, not {ranks}")
        if inputs is None:
            larger = self.collective in ("reduce_scatter", "all_to_all", "scatter")
            length = count * self.ranks if larger else count
            inputs = [numpy.arange(length, dtype=numpy.float32) + rank for rank in range(self.ranks)]
        if len(inputs) != self.ranks:
            raise ScheduleError(f"{_caller()}: there are inputs for {len(inputs)} ranks, not {self.ranks}")
        self.check()
        with self._folder() as folder:
            work = pathlib.Path(folder, "work")
            work.write_bytes(pickle.dumps((self.collective, self.root, list(inputs))))
            environment = {"NICCOLITE_ALGORITHMS": folder, "NCCL_ALGO": self.name, "NICCOLITE_DEVICES": f"virtual:{self.ranks}"}
            done = subprocess.run([sys.executable, "-m", "niccolite._run_schedule", str(work)], check=False,
                                  capture_output=True, text=True, env={**os.environ, **environment})
            if done.returncode != 0:
                raise RuntimeError(f"{self.name} could not run: {done.stderr.strip() or done.stdout.strip()}")
            result: list[Any] = pickle.loads(work.read_bytes())
        return result

    # ---- the work

    def _content(self, rank: int, buffer: str, index: int) -> tuple[_Value, int]:
        if not 0 <= rank < self.ranks:
            raise ScheduleError(f"{_caller()}: there is no rank {rank} among {self.ranks}")
        known = self._contents.get((rank, buffer, index))
        if known is not None:
            return known
        if buffer != "input":
            raise ScheduleError(f"{_caller()}: {buffer} block {index} of rank {rank} is read, and nothing is in it yet")
        if not 0 <= index < self._blocks_of(rank, "input"):
            raise ScheduleError(f"{_caller()}: rank {rank} has no input block {index}")
        return _Value(rank if self.collective in ("all_gather", "gather") else index, frozenset([rank])), 0

    def _blocks_of(self, rank: int, buffer: str) -> int:
        if buffer == "scratch":
            return 1 << 20
        if self.collective in _CUT:
            is_there = rank == self.root or self.collective == "all_reduce" or (self.collective == "reduce") == (buffer == "input")
            return self.blocks if is_there else 0
        large = {"all_gather": "output", "gather": "output", "reduce_scatter": "input", "scatter": "input"}.get(self.collective)
        if large is None:
            return self.ranks
        if buffer != large:
            return 1
        return self.ranks if self.collective not in _ROOTED or rank == self.root else 0

    def _add(self, rank: int, instruction: _Instruction) -> tuple[int, int]:
        instructions = self._programs[rank].setdefault(self._worker, [])
        instructions.append(instruction)
        return self._worker, len(instructions) - 1

    def _send(self, chunk: Chunk, receiver: int, line: _Line) -> tuple[int, int, int]:
        """Has the chunk sent: by the instruction that stored it, if this changes no order, else by one of its own."""
        connection = (chunk.rank, receiver, self._worker)
        place = (chunk.rank, chunk.buffer, chunk.index)
        value, _ = self._content(*place)
        worker, number = self._writers.get(place, (-1, -1))
        if worker == self._worker:
            instructions = self._programs[chunk.rank][worker]
            if not any(connection in each.send for each in instructions[number:]):
                instructions[number].send.append(connection)
                return connection
        self._add(chunk.rank, _Instruction(line, source=(chunk.buffer, chunk.index), send=[connection], block=value.block))
        return connection

    def _move(self, operands: list[Chunk], rank: int, buffer: str, index: int, reduces: bool) -> Chunk:
        """Stores the sum of the operands, or the one that there is, in a block of ``rank``."""
        line = _caller()
        if buffer not in ("output", "scratch"):
            raise ScheduleError(f"{line}: chunks go to \"output\" or \"scratch\", not to {buffer!r}")
        if not 0 <= rank < self.ranks or not 0 <= index < self._blocks_of(rank, buffer):
            raise ScheduleError(f"{line}: there is no {buffer} block {index} on rank {rank}")
        if reduces and self.collective not in _REDUCE:
            raise ScheduleError(f"{line}: {self.collective} only moves data, and adds nothing")
        values = []
        for chunk in operands:
            if chunk.algorithm is not self:
                raise ScheduleError(f"{line}: a chunk is of the algorithm {chunk.algorithm.name}, not of {self.name}")
            value, version = self._content(chunk.rank, chunk.buffer, chunk.index)
            if version != chunk._version:
                raise ScheduleError(f"{line}: {chunk.buffer} block {chunk.index} of rank {chunk.rank} has been overwritten since "
                                    "the chunk was named")
            values.append(value)
        seen: set[int] = set()
        for chunk, value in zip(operands, values):
            if value.block != values[0].block and (reduces or self.collective in _CUT):
                raise ScheduleError(f"{line}: adds a chunk of block {value.block} to one of block {values[0].block}")
            if seen & value.ranks:
                raise ScheduleError(f"{line}: adds the contribution of rank {min(seen & value.ranks)} to block {value.block} twice")
            seen |= value.ranks
            if reduces and chunk.rank == rank and chunk is not operands[0]:
                raise ScheduleError(f"{line}: adds two chunks of rank {rank}; a step has one chunk of its own rank, and adds "
                                    "those that it receives")
        result = _Value(values[0].block, frozenset(seen))
        others = sorted((chunk for chunk in operands if chunk.rank != rank), key=lambda c: min(
            self._content(c.rank, c.buffer, c.index)[0].ranks))
        instruction = _Instruction(line, receive=[self._send(chunk, rank, line) for chunk in others], target=(buffer, index),
                                   block=result.block)
        own = next((chunk for chunk in operands if chunk.rank == rank), None)
        if own is not None:
            instruction.source = (own.buffer, own.index)
            first = min(self._content(own.rank, own.buffer, own.index)[0].ranks)
            instruction.source_position = sum(
                min(self._content(c.rank, c.buffer, c.index)[0].ranks) < first for c in others)
        instruction.finish = reduces and len(seen) == self.ranks
        place = (rank, buffer, index)
        self._writers[place] = self._add(rank, instruction)
        version = self._contents[place][1] + 1 if place in self._contents else 1
        self._contents[place] = (result, version)
        if buffer == "scratch":
            self._scratch = max(self._scratch, index + 1)
        return Chunk(self, rank, buffer, index, version)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            self.save(pathlib.Path(folder, self.name + ".json"))
            yield folder

    def _command(self, *flags: str) -> str:
        """Output of ``niccolite schedule`` of this algorithm."""
        with self._folder() as folder:
            return self._run(["schedule", *flags, os.path.join(folder, self.name + ".json")], {})

    def _run(self, words: list[str], environment: dict[str, str]) -> str:
        import niccolite

        command = os.path.join(niccolite.get_folder(), "bin", "niccolite")
        done = subprocess.run([command, *words], check=False, capture_output=True, text=True, env={**os.environ, **environment})
        if done.returncode == 0:
            return done.stdout
        message = done.stderr.strip().removeprefix(f"niccolite {words[0]}: ")
        message = re.sub(r"^\S*" + re.escape(self.name + ".json") + ": ", "", message)
        found = re.search(r"rank (\d+) channel \d+ worker (\d+) instruction (\d+)", message)
        if found is not None:
            rank, worker, number = map(int, found.groups())
            message = f"{self._line_of(rank, worker, number)}: {message}"
        raise ScheduleError(message)

    def _line_of(self, rank: int, worker: int, number: int) -> _Line:
        workers = self._programs[rank]
        return workers[sorted(workers)[worker]][number].line
