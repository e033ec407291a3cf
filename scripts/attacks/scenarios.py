"""What is done to a job, and what its ranks must see: the expectations of docs/errors.md."""

import dataclasses

ANY_ERROR = frozenset(range(1, 7))
SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE = 2, 3, 4, 5, 6
END = [["leave"], ["leaks"]]


@dataclasses.dataclass
class Scenario:
    group: str
    name: str
    what: str  # for the table
    ranks: list  # the steps of each
    codes: dict  # rank: the codes that are right; 0 alone: nothing goes wrong
    names: dict = dataclasses.field(default_factory=dict)  # rank: what its sentence must have, all of it
    said: dict = dataclasses.field(default_factory=dict)  # rank: what must be on its stderr
    within: float = 1000  # milliseconds from the death, or from the last rank's call
    since: str = ""  # the step from which time counts; empty: the death, else the last call that failed or waited
    waits: bool = False  # work that failed must not look finished
    variables: dict = dataclasses.field(default_factory=dict)
    of_rank: dict = dataclasses.field(default_factory=dict)
    most_descriptors: int = 0  # more than before: of strangers who are still connected
    strangers: str = ""  # ports.Strangers' method, against rank 0
    seconds: float = 8  # until it is ended


def all_but(dead: int, nranks: int, value) -> dict:
    return {rank: value for rank in range(nranks) if rank != dead}


def kills() -> list:
    reduce = ["ncclAllReduce", {"count": 1 << 16}]
    result = []

    def kill(name, what, dead, dying, living, codes=frozenset({REMOTE}), nranks=4, waits=True, **more):
        ranks = [dying if rank == dead else living + END for rank in range(nranks)]
        names = {} if 0 in codes else all_but(dead, nranks, [f"rank {dead}"])
        result.append(Scenario("kill -9 of a rank", name, what, ranks, all_but(dead, nranks, codes), names=names,
                               waits=waits, **more))

    # Init cannot end before rank 3 joins, which it does not before the death.
    for dead in (1, 0):
        late = [["hear", "died"], ["init"]] + END
        scenario = Scenario("kill -9 of a rank", f"init_{dead}", f"rank {dead} in init, before rank 3 has joined",
                            [[["init"]] + END, [["init"]] + END, [["init"]] + END, late],
                            all_but(dead, 4, {REMOTE}), names=all_but(dead, 4, [f"rank {dead}"]))
        scenario.ranks[dead] = [["die_in", 400], ["init"]]
        if dead == 0:
            scenario.names[3] = ["the process that made the unique id"]  # whose rank nobody told it
        result.append(scenario)
    for dead in (1, 0):
        kill(f"first_{dead}", f"rank {dead} after init, others in the first operation", dead,
             [["init"], ["sleep", 50], ["die"]], [["init"], reduce, ["watch"]])
    kill("middle", "rank 1 in the middle of all-reduces", 1, [["init"], ["die_in", 300], ["loop", 5000]],
         [["init"], ["loop", 5000]])
    kill("between", "rank 2 between two operations", 2, [["init"], reduce, ["watch"], ["die"]],
         [["init"], reduce, ["watch"], ["hear", "died"], reduce, ["watch"]])
    kill("destroy", "rank 1 instead of destroying, others destroy", 1, [["init"], reduce, ["watch"], ["die"]],
         [["init"], reduce, ["watch"], ["destroy"]], codes=frozenset({0, REMOTE}), waits=False)
    return result


def mistakes() -> list:
    result = []

    def mistake(name, what, ranks, codes, **more):
        ranks = [steps + END for steps in ranks]
        codes = codes if isinstance(codes, dict) else {rank: codes for rank in range(len(ranks))}
        result.append(Scenario("mistake", name, what, ranks, codes, **more))

    missing = Scenario("mistake", "missing_rank", "rank 1 of 3 never calls init; time-out of 3 s",
                       [[["init"]] + END, [], [["init"]] + END], all_but(1, 3, {REMOTE}),
                       names=all_but(1, 3, ["rank 1"]), within=4000, variables={"NICCOLITE_INIT_TIMEOUT": "3"})
    result.append(missing)

    def differs(name, what, right, wrong, names, waits=True):
        """One rank of three calls otherwise: everybody hears it."""
        steps = [[["init"], wrong if rank == 1 else right, ["meet", "called"], ["watch"]] for rank in range(3)]
        mistake(name, what, steps, {USAGE}, names={rank: ["rank 1", *names] for rank in range(3)}, waits=waits)

    call = "ncclAllReduce"
    differs("count", "rank 1 gives another count", [call], [call, {"count": 1000}], ["1000", "1024"])
    differs("type", "rank 1 gives another type", [call], [call, {"kind": "int32"}], ["int32", "float"])
    differs("operation", "rank 1 gives another operation", [call], [call, {"operation": "max"}], ["max", "sum"])
    # A root has nothing to wait for: what it sends is right.
    differs("root", "rank 1 gives another root", ["ncclBroadcast"], ["ncclBroadcast", {"root": 1}], ["root 0", "root 1"],
            waits=False)
    mistake("order", "rank 1 calls in another order",
            [[["init"], [first], [second], ["watch"]]
             for first, second in (("ncclAllReduce", "ncclBroadcast"), ("ncclBroadcast", "ncclAllReduce"),
                                   ("ncclAllReduce", "ncclBroadcast"))],
            {USAGE}, names={rank: ["rank 1", "ncclBroadcast", "ncclAllReduce"] for rank in range(3)}, waits=True)
    mistake("no_receive", "rank 0 sends, rank 1 destroys without receiving",
            [[["init"], ["ncclSend", {"count": 1 << 22, "peer": 1}], ["watch"]], [["init"], ["destroy"]]],
            {0: {USAGE, REMOTE}, 1: {0, USAGE, REMOTE}}, names={0: ["rank 1"]}, waits=True)
    crossed = [[["init"], ["ncclSend", {"count": 1 << 22, "peer": 1 - rank}], ["ncclRecv", {"count": 1 << 22,
               "peer": 1 - rank}], ["watch", 2500]] for rank in range(2)]
    mistake("cycle", "both ranks send first, then receive, in no group", crossed, {USAGE},
            names={rank: ["rank 0 waits", "rank 1 waits"] for rank in range(2)}, waits=True)
    circle = [[["init"], ["split"], *turn, ["ncclAllReduce", {"count": count}], ["change"],
               ["ncclAllReduce", {"count": 2024 - count}], ["watch", 2500], ["meet", "told"]]
              for turn, count in (([], 1024), ([["change"]], 1000))]
    mistake("circle", "rank 1 uses two communicators in the other order on its stream", circle, {USAGE},
            names={rank: ["count 1024", "count 1000", "waits", "as rank"] for rank in range(2)}, waits=True)
    right = [["ncclAllReduce"], ["watch"], ["check"]]
    mistake("null_buffer", "rank 1 gives a null buffer, then a right one",
            [[["init"], *right], [["init"], ["ncclAllReduce", {"null": True}], *right]], {0: {0}, 1: {ARGUMENT}},
            names={1: ["null"]})
    mistake("destroyed", "rank 0 uses a communicator that it has destroyed",
            [[["init"], ["destroy", {"keeps": True}], ["ncclAllReduce"]], [["init"], ["destroy"]]],
            {0: {ARGUMENT}, 1: {0}}, names={0: ["destroyed"]})
    init = [[["init"]], [["init"]], [["init"]]]
    mistake("algorithm", "NCCL_ALGO=ringg on rank 1 alone", init, ANY_ERROR,
            names={rank: ["rank 1", "ringg"] for rank in (0, 2)} | {1: ["ringg"]}, of_rank={1: {"NCCL_ALGO": "ringg"}})
    mistake("interface", "NCCL_SOCKET_IFNAME=nosuch0 on rank 1 alone", init, ANY_ERROR,
            names={rank: ["rank 1", "nosuch0"] for rank in (0, 2)} | {1: ["nosuch0"]},
            of_rank={1: {"NCCL_SOCKET_IFNAME": "nosuch0"}})
    garbage = {"NCCL_DEBUG": "FOO", "NCCL_BUFFSIZE": "4Q", "NICCOLITE_INIT_TIMEOUT": "1e3",
               "NCCL_SOCKET_FAMILY": "AF_INET7", "NCCL_CHECK_MODE": "foo", "NCCL_COMM_BLOCKING": "maybe"}
    mistake("garbage", "values that mean nothing in six variables",
            [[["init"], ["ncclAllReduce"], ["watch"], ["check"]] for _ in range(2)], {0},
            said={0: [word for pair in garbage.items() for word in pair]}, variables=garbage)
    return result


def strangers() -> list:
    words = {"garbage": "100 connections with 4 KiB of random bytes", "half_open": "300 connections that say nothing",
             "slow_bytes": "20 connections with a byte in 20 ms", "huge_lengths": "64 messages that announce up to 4 GiB"}
    result = []
    work = [["ncclAllReduce"], ["watch"], ["check"], ["destroy"], ["leaks"]]
    for name, what in words.items():
        result.append(Scenario("strangers on every port", f"{name}_at_init", f"{what}, before rank 1 joins",
                               [[["init"]] + work, [["hear", "attacked"], ["init"]] + work], {0: {0}, 1: {0}},
                               within=3000, strangers=name, most_descriptors=320))
        result.append(Scenario("strangers on every port", f"{name}_at_work", f"{what}, between init and the operation",
                               [[["init"], ["hear", "attacked"]] + work for _ in range(2)], {0: {0}, 1: {0}},
                               within=3000, strangers=name, most_descriptors=320))
    return result


def all_scenarios() -> list:
    return kills() + mistakes() + strangers()
