"""What happens, and what the scheduler is to say to it; `play` tells how to read the lines."""

from collections.abc import Callable
from typing import Any


def many(times: int, line: Callable[[int], str]) -> str:
    """Lines that differ in a number, which counts from 1."""
    return "".join(f"{line(number)}\n" for number in range(1, times + 1))


HISTORIES: list[tuple[str, dict[str, Any], str]] = [
    (
        "chunks are worked on in order, and joined when all are done",
        {"chunks": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1, ok 1          | go 1: 32, keep 1, start 2 on 0: 8..16
        ready 2, ok 2          | go 2: 32, keep 2, join 0
        """,
    ),
    (
        "an output that waits is planned when the other is settled, and only then is that joined",
        {"chunks": 1, "outputs": 2, "waits": True, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1, crashed 1     | go 1: 32
        wait 5                 | start 2 on 0: 0..8 own first
        ready 2                | look 0
        looked 0 good          | go 2: 32
        ok 2                   | keep 2, plan 1
        wait 1                 |
        wait 1                 | join 0, start 3 on 0: 1/0..8
        ready 3, ok 3          | go 3: 32, keep 3, join 1
        """,
    ),
    (
        "a device gets its prepared worker when it is given back",
        {"standby": 1},
        """
        join 0                          | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1, ready 2, freed 1, ok 1 | go 1: 32, go 2: 32, start 3 on 0: 16..24, keep 1
        """,
    ),
    (
        "grace: who computes leaves after its batch, who writes is let write, who waits is ended",
        {"per_device": 2, "standby": 1},
        """
        join 0                              | start 1 on 0: 0..8, start 2 on 0: 8..16, start 3 on 0: 16..24
        ready 1, ready 2, freed 1, drain 25 | go 1: 32, go 2: 32, leave 2, end 3
        stopped 3                           |
        leaves-with 2 5                     | keep 2
        ok 1                                | keep 1
        """,
    ),
    (
        "grace: a batch that does not end is given up in time for the rest to be saved, joins as "
        "well",
        {"chunks": 1, "outputs": 2, "done": 1},
        """
        join 0                 | join 0, start 1 on 0: 1/0..8
        ready 1, drain 600     | go 1: 32, leave 1
        drain 25               |
        wait 19                |
        wait 1                 | end 1
        leaves-with 1 3        | keep 1
        """,
    ),
    (
        "a run that is stopped ends all",
        {"standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1, stop          | go 1: 32, end 2, end 1
        stopped 1              |
        stopped 2              |
        """,
    ),
    (
        "bad input is certain: taken apart at once, quarantined alone",
        {"chunks": 1, "size": 2},
        """
        join 0                 | start 1 on 0: 0..2
        ready 1, input 1 2x10  | go 1: 32, start 2 on 0: 0..1
        ready 2, ok 2          | go 2: 32, keep 2, start 3 on 0: 1..2
        ready 3, input 3 1x10  | go 3: 32, quarantine 1, join 0
        """,
    ),
    (
        "out of memory: half the batch for all from now on, at once",
        {"chunks": 2},
        """
        join 0                              | start 1 on 0: 0..8
        ready 1, oom 1 32x10                | go 1: 32, learn a 16, start 2 on 0: 0..8
        ready 2, looked 0 good, oom 2 16x10 | look 0, go 2: 16, learn a 8, start 3 on 0: 0..8
        ready 3, looked 0 good, ok 3        | look 0, go 3: 8, keep 3, start 4 on 0: 8..16
        ready 4                             | go 4: 8
        """,
    ),
    (
        "B3: the verdict comes before the next go of that device",
        {"standby": 1},
        """
        join 0                        | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1, ready 2, oom 1 32x10 | go 1: 32, learn a 16, look 0, start 3 on 0: 0..8
        looked 0 good                 | go 2: 16
        """,
    ),
    (
        "a chunk under which ten machines were lost is given up",
        {"chunks": 1},
        "join 0 node n0 | start 1 on 0: 0..8\n"
        + many(9, lambda n: f"lost {n} | start {n + 1} on 0: 0..8")
        + "lost 10 | set aside 0",
    ),
    (
        "the disk is full: a worker's vectors wait, and are stored when there is room",
        {"chunks": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1, disk full     | go 1: 32
        ok 1                   | keep 1, wait for all
        wait 1                 | keep 1, wait for all
        disk free              |
        wait 2                 | keep 1, join 0
        """,
    ),
    (
        "a segfault of a poison text: again with a canary, then the batch under way is known",
        {"chunks": 1, "size": 2},
        """
        join 0 look none               | start 1 on 0: 0..2
        ready 1, crashed 1 2x10        | go 1: 32
        wait 0.5                       | start 2 on 0: 0..2 own first
        ready 2, crashed 2 1x10 done 0 | go 2: 32, keep 2, quarantine 1, join 0
        """,
    ),
    (
        "two canaries fail in a row: no text is blamed, and the run ends",
        {"chunks": 2, "size": 2, "attempts": 1},
        """
        join 0 look none             | start 1 on 0: 0..2
        ready 1, ok 1                | go 1: 32, keep 1, start 2 on 0: 2..4
        ready 2, fault 2 2x10        | go 2: 32, start 3 on 0: 2..3 canary 0
        ready 3, fault 3 1x10 canary | go 3: 32, start 4 on 0: 3..4 canary 0
        wait 1                       |
        ready 4, fault 4 1x10 canary | go 4: 32, halt 69
        """,
    ),
    (
        "a text that fails is blamed after a canary in its own attempt",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        ready 1, fault 1 1x10  | go 1: 32, start 2 on 0: 1..2 own first
        ready 2, ok 2          | go 2: 32, keep 2, start 3 on 0: 0..1 canary 1
        ready 3, fault 3 1x10  | go 3: 32, quarantine 0, join 0
        """,
    ),
    (
        "while no text was ever encoded, new chunks come before those that failed",
        {"chunks": 3, "size": 2, "attempts": 1},
        """
        join 0 look none              | start 1 on 0: 0..2
        ready 1, raised 1 2x10        | go 1: 32, start 2 on 0: 2..4 own first
        ready 2, ok 2                 | go 2: 32, keep 2, start 3 on 0: 0..1 canary 2
        ready 3, raised 3 1x10 done 0 | go 3: 32, keep 3, start 4 on 0: 1..2 canary 2
        """,
    ),
    (
        "a worker that begins no batch in time is ended; another chunk goes first",
        {"chunks": 2},
        """
        join 0                    | start 1 on 0: 0..8
        ready 1, hung 1 cuda_init | go 1: 32
        wait 0.5                  | start 2 on 0: 8..16
        """,
    ),
    (
        "twenty attempts in a row that repeat what failed end the run: it is not the texts",
        {"chunks": 30, "attempts": 30},
        "join 0 look none | start 1 on 0: 0..8\n"
        + many(
            19,
            lambda n: (
                f"ready {n}, unread {n} | go {n}: 32, start {n + 1} on 0: {8 * n}..{8 * n + 8}"
            ),
        )
        + "ready 20, unread 20 | go 20: 32, halt 75",
    ),
    (
        "what is taken apart gets smaller by itself, and is not counted among the twenty",
        {"chunks": 20, "size": 64, "attempts": 30},
        "join 0 look none | start 1 on 0: 0..64\n"
        + many(6, lambda n: f"ready {n}, input {n} | go {n}: 32, start {n + 1} on 0: 0..{64 >> n}")
        + many(
            6,
            lambda n: (
                f"ready {n + 6}, unread {n + 6} | go {n + 6}: 32, start {n + 7} on 0: "
                f"{1 << n - 1}..{1 << n}"
            ),
        )
        + many(
            8,
            lambda n: (
                f"ready {n + 12}, unread {n + 12} | go {n + 12}: 32, start {n + 13} on 0: "
                f"{64 * n}..{64 * n + 64}"
            ),
        ),
    ),
    (
        "where a worker from a template does not start, the next is fresh, whatever its texts; a "
        "success ends that",
        {"chunks": 4, "templates": True},
        """
        join 0 look none       | start 1 on 0: 0..8
        init 1                 |
        wait 0.6               | start 2 on 0: 8..16 fresh
        ready 2, ok 2          | go 2: 32, keep 2, start 3 on 0: 16..24
        """,
    ),
    (
        "a warm worker that would not begin is replaced by a fresh one, uncharged",
        {"chunks": 1, "attempts": 1},
        """
        join 0                 | start 1 on 0: 0..8
        refused 1              | start 2 on 0: 0..8
        ready 2, ok 2          | go 2: 32, keep 2, join 0
        """,
    ),
    (
        "a committed chunk is damaged: it is computed again, and joined",
        {"chunks": 2, "done": 2},
        """
        join 0                 | join 0
        damaged 0 1            | start 1 on 0: 8..16
        ready 1, ok 1          | go 1: 32, keep 1, join 0
        """,
    ),
    (
        "after a crash on it the GPU is looked at before the next worker gets it",
        {"chunks": 3, "standby": 1},
        """
        join 0                           | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1, ready 2, crashed 1 8x10 | go 1: 32, look 0, start 3 on 0: 16..24 own first
        looked 0 busy, wait 1            |
        wait 1                           | look 0
        looked 0 blind                   | go 2: 32
        """,
    ),
    (
        "a GPU that is broken when it joins is looked at again before a worker gets it: the others "
        "go on",
        {"chunks": 2},
        """
        join 0 look broken       | start 1 on 0: 0..8
        join 1                   | start 2 on 1: 8..16
        ready 1, looked 0 broken | look 0, drop 0 69, end 1
        """,
    ),
    (
        "a chunk that cannot be begun is set aside after its tries, and the others go on",
        {"chunks": 2, "attempts": 1},
        """
        host full              |
        join 0 look none       | start 1 on 0: 0..8, set aside 0
        host free              | start 2 on 0: 8..16
        """,
    ),
    (
        "a part turns out damaged: its texts are computed again",
        {"chunks": 2, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1, nan 1 1       | go 1: 32, keep 1, start 2 on 0: 1..2 canary 0
        ready 2, disk full     | go 2: 1
        ok 2                   | keep 2, wait for all
        part-damaged 0 0       |
        disk free              |
        wait 2                 | keep 2, start 3 on 0: 0..1
        ready 3, ok 3          | go 3: 32, keep 3, start 4 on 0: 2..4
        """,
    ),
    (
        "E1: the model cannot be loaded: other chunks show it, no text is touched, and the third "
        "in a row ends the run",
        {"chunks": 4, "standby": 1},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        crashed 1 model_load   |
        wait 0.5               | start 3 on 0: 16..24
        crashed 3 model_load   |
        wait 1                 | start 4 on 0: 0..8
        crashed 4 model_load   | halt 78
        """,
    ),
    (
        "E1: a worker that began before another failed to start proves nothing of its own",
        {"chunks": 3, "standby": 1},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        wait 1                 |
        crashed 1 model_load   |
        crashed 2 model_load   |
        wait 0.5               | start 3 on 0: 16..24
        ready 3, ok 3          | go 3: 32, keep 3
        wait 0.5               | start 4 on 0: 0..8, start 5 on 0: 8..16
        """,
    ),
    (
        "X9: starts that fail where it worked before are waited out, and end the run after "
        "wait_timeout",
        {"chunks": 3, "wait_timeout": 5},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1, ok 1          | go 1: 32, keep 1, start 2 on 0: 8..16
        init 2                 |
        wait 0.5               | start 3 on 0: 16..24
        init 3                 |
        wait 1                 | start 4 on 0: 8..16
        init 4                 |
        wait 2                 | start 5 on 0: 16..24
        init 5                 |
        wait 4                 | start 6 on 0: 8..16
        init 6                 | halt 69
        """,
    ),
    (
        "E5: the neighbour stays: after wait_timeout batches get smaller, and the next is not "
        "waited for again",
        {"chunks": 1, "wait_timeout": 1},
        """
        join 0 look none         | start 1 on 0: 0..8
        ready 1, oom 1 8x10 came | go 1: 32, wait for 0
        wait 1                   | start 2 on 0: 0..8
        ready 2, oom 2 8x10 came | go 2: 32, learn a 4, start 3 on 0: 0..8
        ready 3, oom 3 4x10 came | go 3: 4, learn a 2, start 4 on 0: 0..8
        """,
    ),
    (
        "salvage before the decision: a twentieth failure in a row that leaves a vector ends no "
        "run",
        {"chunks": 25, "size": 3, "done": 1},
        "join 0 look none | start 1 on 0: 3..6\n"
        + many(
            19,
            lambda n: (
                f"ready {n}, raised {n} 2x10 | go {n}: 32, start {n + 1} on 0: "
                f"{3 * n + 3}..{3 * n + 6} canary 0"
            ),
        )
        + "ready 20, raised 20 2x10 done 60 | go 20: 32, keep 20, start 21 on 0: 63..66 canary 0\n"
        + "ready 21, ok 21 | go 21: 32, keep 21, start 22 on 0: 66..69",
    ),
    (
        "a lesson that is narrower holds: a worker that got its limits before teaches no wider one",
        {"chunks": 3, "per_device": 2},
        """
        join 0 look none              | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1, ready 2, oom 1 32x10 | go 1: 32, go 2: 32, learn a 16, start 3 on 0: 0..8
        ready 3, oom 3 16x10          | go 3: 16, learn a 8, start 4 on 0: 0..8
        oom 2 32x10                   | start 5 on 0: 8..16
        ready 4                       | go 4: 8
        """,
    ),
    (
        "a lost machine charges no chunk; its devices are done without until they come back",
        {"chunks": 2},
        """
        join 0 node n0          | start 1 on 0: 0..8
        join 1 node n1          | start 2 on 1: 8..16
        ready 1, leaves n0      | go 1: 32, end 1
        lost 1                  |
        ready 2, ok 2           | go 2: 32, keep 2, start 3 on 1: 0..8
        ready 3, join 2 node n0 | go 3: 32
        ok 3                    | keep 3, join 0
        """,
    ),
    (
        "the disk stays full: 74",
        {"chunks": 1, "wait_timeout": 3},
        """
        join 0                 | start 1 on 0: 0..8
        disk full              |
        ready 1, ok 1          | go 1: 32, keep 1, wait for all
        wait 1                 | keep 1, wait for all
        wait 1.2               | keep 1, wait for all
        wait 1.3               | keep 1, halt 74
        """,
    ),
    (
        "a bad text whose record waits for the disk counts: one more is one too many",
        {"chunks": 4, "size": 1, "done": 2, "max_bad_rows": 1},
        """
        join 0 look none       | start 1 on 0: 2..3
        join 1 look none       | start 2 on 1: 3..4
        ready 1, nan 1 0       | go 1: 32
        ready 2, nan 2 0       | go 2: 32, start 3 on 0: 3..4 canary 0, start 4 on 1: 2..3 canary 0
        ready 3, disk full     | go 3: 32
        nan 3 0                | quarantine 3, wait for all
        ready 4, nan 4 0       | halt 78 bad rows
        """,
    ),
    (
        "a node's disk is full: its own devices wait, and the others take its chunks",
        {"chunks": 3, "wait_timeout": 3},
        """
        join 0 node n0         | start 1 on 0: 0..8
        join 1 node n1         | start 2 on 1: 8..16
        ready 2, disk 1        | go 2: 32, wait for 0
        wait 1                 | start 3 on 0: 16..24
        disk 3                 | wait for 0
        ok 2                   | keep 2, start 4 on 1: 0..8
        wait 4                 |
        ready 4, ok 4          | go 4: 32, keep 4, start 5 on 1: 16..24
        """,
    ),
]
"""(what it shows, what is given, what happens and what is said)."""
