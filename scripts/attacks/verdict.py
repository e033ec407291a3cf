"""What the ranks of an attacked job saw, and what is wrong with it."""

import dataclasses
import re

from attacks.api import IN_PROGRESS

RESULTS = ["ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
           "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress"]
AFTERWARDS = ("ncclCommAbort", "leaks")  # steps that follow what was attacked
CALL = re.compile(r"(calls )?nccl")


@dataclasses.dataclass
class Seen:
    rank: int
    code: int
    text: str
    milliseconds: float
    problems: list

    def result(self) -> str:
        return RESULTS[self.code]


def is_error(event: dict) -> bool:
    return event["code"] not in (0, IN_PROGRESS) and event["step"] not in AFTERWARDS


def decisive(events: list) -> dict:
    """The first failure, or else the last thing that succeeded."""
    for event in events:
        if is_error(event):
            return event
    main = [event for event in events if event["step"] not in AFTERWARDS]
    return main[-1] if main else {"step": "nothing", "started": 0, "ended": 0, "code": 0, "text": ""}


def begin_of(job, rank: int, seen: dict, attacked: float) -> float:
    """When what this rank saw could first be known: at the death or the attack, but not before this rank called; else when
    the last rank called."""
    deaths = [event["ended"] for other in range(len(job.processes)) for event in job.events(other)
              if event["step"] == "dies"]
    ranks = [rank] if deaths or attacked else range(len(job.processes))
    calls = [event["started"] for other in ranks for event in job.events(other)
             if CALL.match(event["step"]) and event["step"] not in AFTERWARDS and event["started"] <= seen["ended"]]
    if attacked:
        calls = []
    return max([attacked, *deaths, *calls], default=seen["ended"])


def judge(job, scenario, rank: int, attacked: float) -> Seen:
    events = job.events(rank)
    event = decisive(events)
    said = job.said(rank)
    milliseconds = max(0.0, event["ended"] - begin_of(job, rank, event, attacked))
    seen = Seen(rank, event["code"], event["text"], milliseconds, [])
    problems = seen.problems
    if job.ending(rank):
        problems.append(f"{job.ending(rank)} after {events[-1]['step'] if events else 'nothing'}")
    if seen.code not in scenario.codes[rank]:
        right = [RESULTS[code] for code in sorted(scenario.codes[rank])]
        problems.append("no error" if seen.code == 0 else "not " + " or ".join(right))
    elif milliseconds > scenario.within:
        problems.append(f"later than {scenario.within:.0f} ms")
    if seen.code != 0:
        missing = [word for word in scenario.names.get(rank, []) if word.lower() not in seen.text.lower()]
        if missing:
            problems.append("does not name " + ", ".join(missing))
    unsaid = [word for word in scenario.said.get(rank, []) if word not in said]
    if unsaid:
        problems.append("does not say " + ", ".join(unsaid))
    if any(each["step"] == "WRONG DATA" for each in events):
        problems.append("wrong data")
    if scenario.waits and seen.code != 0 and event.get("waits") is False:
        problems.append("failed work looks finished")
    for leaks in (each["more"] for each in events if each["step"] == "leaks"):
        most = {"descriptors": scenario.most_descriptors}
        problems += [f"{number} {what} more than before" for what, number in leaks.items() if number > most.get(what, 0)]
    if not seen.text and said.strip():
        seen.text = sentence_of(said)
    return seen


def sentence_of(said: str) -> str:
    """The first line of the log, without where it comes from."""
    return re.sub(r"^.*?NCCL (WARN|INFO|ERROR) ", "", said.strip().splitlines()[0])


def in_general(text: str) -> str:
    """Without what is another in each run."""
    text = re.sub(r"0x[0-9a-f]{5,}", "0x...", text)
    text = re.sub(r"\bport \d+", "port ...", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:...", text)
    text = re.sub(r"\b(pid|process) \d+", r"\1 ...", text)
    text = re.sub(r"/tmp/niccolite_attack_\w+", "...", text)
    return " ".join(text.split())
