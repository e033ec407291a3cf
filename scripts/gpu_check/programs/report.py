"""What the programs of `gpu-check --clients` have in common: a line of JSON per case, on rank 0."""

import json
import os
import time
import traceback

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Skip(Exception):
    """Raised by a case that cannot be tried here, with the reason."""


def say(**what):
    print("CASE " + json.dumps(what), flush=True)


def run(cases, agree=lambda is_right: is_right):
    """Runs (name, function) in order. A function raises what is wrong, or returns more to report. `agree` makes one verdict of the
    ranks'. Ends at the first case that fails on some rank, since the ranks may be in different places then."""
    for name, function in cases:
        begin, problem, more = time.monotonic(), None, None
        try:
            more = function()
        except Skip as reason:
            more = {"skipped": str(reason)}
        except Exception as error:  # whatever a client may raise
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}"
            traceback.print_exc()
        is_right = agree(problem is None)
        if RANK == 0 or problem:
            say(case=name, rank=RANK, right=is_right and problem is None, problem=problem, seconds=round(time.monotonic() - begin, 2),
                **(more or {}))
        if not is_right:
            return False
    return True
