"""What happens, and what the scheduler is to say to it; `play` tells how to read the lines.

`python -m tests.simulator --histories` prints them with what is said now.
"""

from typing import Any

HISTORIES: list[tuple[str, dict[str, Any], str]] = [
    (
        "chunks are worked on in order, and joined when all are done",
        {"chunks": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 8..16
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "a device gets its prepared worker when it is given back",
        {"standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 2                | go 2: 32
        ready 1                |
        freed 1                | start 3 on 0: 16..24
        ok 1                   | keep 1
        """,
    ),
    (
        "no more workers have a device than per_device",
        {"per_device": 2, "standby": 1, "chunks": 5},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16, start 3 on 0: 16..24
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        ready 3                |
        freed 2                | go 3: 32, start 4 on 0: 24..32
        """,
    ),
    (
        "every device gets a worker before any gets a second",
        {"standby": 1, "chunks": 5},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        join 1                 | start 3 on 1: 16..24, start 4 on 1: 24..32
        """,
    ),
    (
        "a run that is drained lets those at work finish",
        {"standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        drain                  | end 2
        stopped 2              |
        ok 1                   | keep 1
        """,
    ),
    (
        "grace: who computes leaves after its batch, who writes is let write, who waits is ended",
        {"per_device": 2, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16, start 3 on 0: 16..24
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        freed 1                |
        drain 25               | leave 2, end 3
        stopped 3              |
        leaves-with 2 5        | keep 2
        ok 1                   | keep 1
        """,
    ),
    (
        "grace: a batch that does not end is given up in time for the rest to be saved, joins as well",
        {"chunks": 1, "outputs": 2, "done": 1},
        """
        join 0                 | start 1 on 0: 1/0..8, join 0
        ready 1                | go 1: 32
        drain 600              | leave 1
        drain 25               |
        wait 19                |
        wait 1                 | end 1
        leaves-with 1 3        | keep 1
        """,
    ),
    (
        "grace: nobody is asked to leave who is being ended",
        {"chunks": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        stop                   | end 1
        drain 25               |
        stopped 1              |
        """,
    ),
    (
        "a run that is stopped ends all",
        {"standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        stop                   | end 1, end 2
        stopped 1              |
        stopped 2              |
        """,
    ),
    (
        "bad input is certain: taken apart at once, quarantined alone",
        {"chunks": 1, "size": 2},
        """
        join 0                 | start 1 on 0: 0..2
        ready 1                | go 1: 32
        input 1 2x10           | start 2 on 0: 0..1
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 1..2
        ready 3                | go 3: 32
        input 3 1x10           | quarantine 1, join 0
        """,
    ),
    (
        "NaN rows: the others are kept, and each is tried alone",
        {"chunks": 1, "size": 6},
        """
        join 0                 | start 1 on 0: 0..6
        ready 1                | go 1: 32
        nan 1 2,4              | keep 1, start 2 on 0: 2..3 canary 0
        ready 2                | go 2: 32
        nan 2 0                | quarantine 2, start 3 on 0: 4..5 canary 0
        ready 3                | go 3: 32
        nan 3 0                | quarantine 4, join 0
        """,
    ),
    (
        "a NaN row that is good when alone is kept",
        {"chunks": 1, "size": 6},
        """
        join 0                 | start 1 on 0: 0..6
        ready 1                | go 1: 32
        nan 1 2                | keep 1, start 2 on 0: 2..3 canary 0
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "out of memory: half the batch for all from now on, at once",
        {"chunks": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 32x10            | learn a 16, start 2 on 0: 0..8
        ready 2                | look 0
        looked 0 good          | go 2: 16
        oom 2 16x10            | learn a 8, start 3 on 0: 0..8
        ready 3                | look 0
        looked 0 good          | go 3: 8
        ok 3                   | keep 3, start 4 on 0: 8..16
        ready 4                | go 4: 8
        """,
    ),
    (
        "B3: the verdict comes before the next go of that device",
        {"standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                |
        oom 1 32x10            | learn a 16, look 0, start 3 on 0: 0..8
        looked 0 good          | go 2: 16
        """,
    ),
    (
        "a slower worker that pays for an old limit teaches nothing",
        {"per_device": 2},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        oom 1 32x10            | learn a 16, start 3 on 0: 0..8
        oom 2 32x10            | start 4 on 0: 8..16
        """,
    ),
    (
        "lessons are of a kind of device",
        {"chunks": 4},
        """
        join 0 kind a          | start 1 on 0: 0..8
        join 1 kind b          | start 2 on 1: 8..16
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        oom 1 32x10            | learn a 16, start 3 on 0: 16..24
        ok 2                   | keep 2, start 4 on 1: 0..8
        ready 4                | go 4: 32
        ready 3                | look 0
        looked 0 good          | go 3: 16
        """,
    ),
    (
        "a worker that cannot be started for lack of memory is tried again",
        {"chunks": 1, "attempts": 2},
        """
        host full              |
        join 0                 | start 1 on 0: 0..8
        host free              |
        wait 0.5               | start 2 on 0: 0..8
        """,
    ),
    (
        "a worker that was lost with its machine is tried again; its GPU has done nothing",
        {"chunks": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        lost 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "an interrupted worker that nobody asked to stop is tried again",
        {"chunks": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        sigterm 1              |
        wait 0.5               | start 2 on 0: 0..8 own first
        ready 2                | look 0
        looked 0 good          | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "a lost machine charges no chunk; its devices are done without until they come back",
        {"chunks": 2},
        """
        join 0 node n0         | start 1 on 0: 0..8
        join 1 node n1         | start 2 on 1: 8..16
        ready 1                | go 1: 32
        leaves n0              | end 1
        lost 1                 |
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 1: 0..8
        ready 3                | go 3: 32
        join 2 node n0         |
        ok 3                   | keep 3, join 0
        """,
    ),
    (
        "a chunk under which ten machines were lost is given up",
        {"chunks": 1},
        """
        join 0 node n0         | start 1 on 0: 0..8
        lost 1                 | start 2 on 0: 0..8
        lost 2                 | start 3 on 0: 0..8
        lost 3                 | start 4 on 0: 0..8
        lost 4                 | start 5 on 0: 0..8
        lost 5                 | start 6 on 0: 0..8
        lost 6                 | start 7 on 0: 0..8
        lost 7                 | start 8 on 0: 0..8
        lost 8                 | start 9 on 0: 0..8
        lost 9                 | start 10 on 0: 0..8
        lost 10                | set aside 0
        """,
    ),
    (
        "the GPU itself is faulty: the last device ends the run",
        {},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        lost-gpu 1             | halt 69
        """,
    ),
    (
        "the GPU itself is faulty: the others go on",
        {},
        """
        join 0                 | start 1 on 0: 0..8
        join 1                 | start 2 on 1: 8..16
        ready 1                | go 1: 32
        lost-gpu 1             | drop 0 69
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 1: 0..8
        """,
    ),
    (
        "somebody holds the GPU: wait, longer each time, and then halt",
        {"chunks": 1, "wait_timeout": 3},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        busy 1                 | wait for 0
        wait 1                 | start 2 on 0: 0..8
        ready 2                | look 0
        looked 0 good          | go 2: 32
        busy 2                 | wait for 0
        wait 1.1               | start 3 on 0: 0..8
        ready 3                | look 0
        looked 0 good          | go 3: 32
        busy 3                 | wait for 0
        wait 1.2               | start 4 on 0: 0..8
        ready 4                | look 0
        looked 0 good          | go 4: 32
        busy 4                 | halt 75
        """,
    ),
    (
        "the hub is down: all wait",
        {"chunks": 2, "wait_timeout": 3},
        """
        join 0                 | start 1 on 0: 0..8
        join 1                 | start 2 on 1: 8..16
        hub 1                  | wait for all
        hub 2                  | wait for all
        wait 1                 | start 3 on 0: 8..16, start 4 on 1: 0..8
        hub 3                  | wait for all
        hub 4                  | wait for all
        wait 1.2               | start 5 on 0: 0..8, start 6 on 1: 8..16
        hub 5                  | wait for all
        wait 1.3               |
        hub 6                  | halt 75
        """,
    ),
    (
        "the disk is full: a worker's vectors wait, and are computed again",
        {"chunks": 1},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        disk full              |
        ok 1                   | keep 1, wait for all
        wait 1                 | start 2 on 0: 0..8, wait for all
        disk free              |
        wait 2                 | start 3 on 0: 0..8
        ready 3                | go 3: 32
        ok 3                   | keep 3, join 0
        """,
    ),
    (
        "the disk stays full: 74",
        {"chunks": 1, "wait_timeout": 3},
        """
        join 0                 | start 1 on 0: 0..8
        disk full              |
        ready 1                | go 1: 32
        ok 1                   | keep 1, wait for all
        wait 1                 | start 2 on 0: 0..8, wait for all
        wait 1.2               | start 3 on 0: 0..8, wait for all
        wait 1.3               | start 4 on 0: 0..8, halt 74
        """,
    ),
    (
        "a segfault of a poison text: again with a canary, then the batch under way is known",
        {"chunks": 1, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        crashed 1 2x10         |
        wait 0.5               | start 2 on 0: 0..2 own first
        ready 2                | go 2: 32
        crashed 2 1x10 done 0  | keep 2, quarantine 1, join 0
        """,
    ),
    (
        "the encoder refuses every text of an output: three shortest texts, and 78",
        {"chunks": 1, "size": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        raised 1 2x10          | start 2 on 0: 0..1 own first
        ready 2                | go 2: 32
        raised 2 1x10 canary   | start 3 on 0: 1..2 own 2
        ready 3                | go 3: 32
        raised 3 1x10 canary   |
        wait 1                 | start 4 on 0: 0..1 own 3
        ready 4                | go 4: 32
        raised 4 1x10 canary   | halt 78
        """,
    ),
    (
        "not one text was ever encoded, for all crash: no text is blamed, 69",
        {"chunks": 1, "size": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        crashed 1 2x10         | start 2 on 0: 0..1 own first
        ready 2                | go 2: 32
        crashed 2 1x10 canary  | start 3 on 0: 1..2 own 2
        ready 3                | go 3: 32
        crashed 3 1x10 canary  |
        wait 1                 | start 4 on 0: 0..1 own 3
        ready 4                | go 4: 32
        crashed 4 1x10 canary  | halt 69
        """,
    ),
    (
        "not one text was ever encoded, and the device is at fault: 69",
        {"chunks": 1, "size": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        fault 1 2x10           | start 2 on 0: 0..1 own first
        ready 2                | go 2: 32
        fault 2 1x10 canary    | start 3 on 0: 1..2 own 2
        ready 3                | go 3: 32
        fault 3 1x10 canary    |
        wait 1                 | start 4 on 0: 0..1 own 3
        ready 4                | go 4: 32
        fault 4 1x10 canary    | halt 69
        """,
    ),
    (
        "two canaries fail in a row: no text is blamed, and the run ends",
        {"chunks": 2, "size": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 2..4
        ready 2                | go 2: 32
        fault 2 2x10           | start 3 on 0: 2..3 canary 0
        ready 3                | go 3: 32
        fault 3 1x10 canary    | start 4 on 0: 3..4 canary 0
        wait 1                 |
        ready 4                | go 4: 32
        fault 4 1x10 canary    | halt 69
        """,
    ),
    (
        "two canaries fail where others work: the device is left out, and the text is tried elsewhere",
        {"chunks": 6, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        join 1 look none       | start 2 on 1: 1..2
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 1: 2..3
        ready 3                | go 3: 32
        fault 1 1x10           | start 4 on 0: 3..4 canary 1
        ready 4                | go 4: 32
        fault 4 1x10 canary    | start 5 on 0: 4..5 canary 1
        ready 5                | go 5: 32
        fault 5 1x10 canary    | drop 0 69
        ok 3                   | keep 3, start 6 on 1: 0..1 canary 1
        ready 6                | go 6: 32
        ok 6                   | keep 6, start 7 on 1: 4..5 canary 0
        """,
    ),
    (
        "a text is not blamed by a success on another device",
        {"chunks": 3, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        join 1 look none       | start 2 on 1: 1..2
        ready 1                | go 1: 32
        fault 1 1x10           | start 3 on 0: 2..3 own first
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 4 on 1: 0..1 canary 1
        ready 3                | go 3: 32
        fault 3 1x10 canary    |
        ready 4                | go 4: 32
        ok 4                   | keep 4
        """,
    ),
    (
        "a text is not blamed by a worker that had the device before it failed, and has only written since",
        {"chunks": 2, "size": 1, "attempts": 1, "standby": 1},
        """
        join 0 look none       | start 1 on 0: 0..1, start 2 on 0: 1..2
        ready 1                | go 1: 32
        ready 2                |
        wait 1                 |
        freed 1                | go 2: 32
        wait 1                 |
        fault 2 1x10           | start 3 on 0: 1..2 own first
        ok 1                   | keep 1
        ready 3                | go 3: 32
        fault 3 1x10 canary    |
        wait 1                 | start 4 on 0: 1..2 canary 0
        ready 4                | go 4: 32
        fault 4 1x10 canary    | halt 69
        """,
    ),
    (
        "a text that fails is blamed after a canary in its own attempt",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        ready 1                | go 1: 32
        fault 1 1x10           | start 2 on 0: 1..2 own first
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 0..1 canary 1
        ready 3                | go 3: 32
        fault 3 1x10           | quarantine 0, join 0
        """,
    ),
    (
        "the machine of an accused text leaves: the text is tried on another",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 node n0 look none | start 1 on 0: 0..1
        join 1 node n1 look none | start 2 on 1: 1..2
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        fault 1 1x10           |
        leaves n0              |
        ok 2                   | keep 2, start 3 on 1: 0..1 canary 1
        ready 3                | go 3: 32
        ok 3                   | keep 3, join 0
        """,
    ),
    (
        "a canary travels with its text where the worker is lost",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 1..2
        ready 2                | go 2: 32
        fault 2 1x10           | start 3 on 0: 1..2 canary 0
        lost 3                 | start 4 on 0: 1..2 canary 0
        ready 4                | go 4: 32
        fault 4 1x10           | quarantine 1, join 0
        """,
    ),
    (
        "while no text was ever encoded, new chunks come before those that failed",
        {"chunks": 3, "size": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        raised 1 2x10          | start 2 on 0: 2..4 own first
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 0..1 canary 2
        ready 3                | go 3: 32
        raised 3 1x10 done 0   | keep 3, start 4 on 0: 1..2 canary 0
        """,
    ),
    (
        "more bad texts than max_bad_rows end the run",
        {"chunks": 2, "size": 2, "max_bad_rows": 1},
        """
        join 0                 | start 1 on 0: 0..2
        ready 1                | go 1: 32
        input 1 2x10           | start 2 on 0: 0..1
        ready 2                | go 2: 32
        input 2 1x10           | quarantine 0, start 3 on 0: 1..2
        ready 3                | go 3: 32
        input 3 1x10           | halt 78 bad rows
        """,
    ),
    (
        "on_bad_row: fail ends the run at the first",
        {"chunks": 1, "size": 1, "fail": True},
        """
        join 0                 | start 1 on 0: 0..1
        ready 1                | go 1: 32
        input 1 1x10           | halt 78 bad rows
        """,
    ),
    (
        "all texts of an output are bad: 78",
        {"chunks": 1, "size": 2},
        """
        join 0                 | start 1 on 0: 0..2
        ready 1                | go 1: 32
        input 1 2x10           | start 2 on 0: 0..1
        ready 2                | go 2: 32
        input 2 1x10           | quarantine 0, start 3 on 0: 1..2
        ready 3                | go 3: 32
        input 3 1x10           | quarantine 1, halt 78
        """,
    ),
    (
        "a chunk of bad texts alone waits for the first vector, which says how many numbers it has",
        {"chunks": 2, "size": 1},
        """
        join 0                 | start 1 on 0: 0..1
        ready 1                | go 1: 32
        input 1 1x10           | quarantine 0, start 2 on 0: 1..2
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "a worker without progress is ended, and its chunk tried again",
        {"chunks": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        hung 1 8x10            |
        wait 0.5               | start 2 on 0: 0..8 own first
        """,
    ),
    (
        "a worker that begins no batch in time is ended; another chunk goes first",
        {"chunks": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        hung 1 cuda_init       |
        wait 0.5               | start 2 on 0: 8..16
        """,
    ),
    (
        "twenty attempts in a row that repeat what failed end the run: it is not the texts",
        {"chunks": 30, "attempts": 30},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        unread 1              | start 2 on 0: 8..16
        ready 2                | go 2: 32
        unread 2              | start 3 on 0: 16..24
        ready 3                | go 3: 32
        unread 3              | start 4 on 0: 24..32
        ready 4                | go 4: 32
        unread 4              | start 5 on 0: 32..40
        ready 5                | go 5: 32
        unread 5              | start 6 on 0: 40..48
        ready 6                | go 6: 32
        unread 6              | start 7 on 0: 48..56
        ready 7                | go 7: 32
        unread 7              | start 8 on 0: 56..64
        ready 8                | go 8: 32
        unread 8              | start 9 on 0: 64..72
        ready 9                | go 9: 32
        unread 9              | start 10 on 0: 72..80
        ready 10               | go 10: 32
        unread 10             | start 11 on 0: 80..88
        ready 11               | go 11: 32
        unread 11             | start 12 on 0: 88..96
        ready 12               | go 12: 32
        unread 12             | start 13 on 0: 96..104
        ready 13               | go 13: 32
        unread 13             | start 14 on 0: 104..112
        ready 14               | go 14: 32
        unread 14             | start 15 on 0: 112..120
        ready 15               | go 15: 32
        unread 15             | start 16 on 0: 120..128
        ready 16               | go 16: 32
        unread 16             | start 17 on 0: 128..136
        ready 17               | go 17: 32
        unread 17             | start 18 on 0: 136..144
        ready 18               | go 18: 32
        unread 18             | start 19 on 0: 144..152
        ready 19               | go 19: 32
        unread 19             | start 20 on 0: 152..160
        ready 20               | go 20: 32
        unread 20             | halt 75
        """,
    ),
    (
        "what is taken apart gets smaller by itself, and is not counted among the twenty",
        {"chunks": 20, "size": 64, "attempts": 30},
        """
        join 0 look none       | start 1 on 0: 0..64
        ready 1                | go 1: 32
        input 1                | start 2 on 0: 0..32
        ready 2                | go 2: 32
        input 2                | start 3 on 0: 0..16
        ready 3                | go 3: 32
        input 3                | start 4 on 0: 0..8
        ready 4                | go 4: 32
        input 4                | start 5 on 0: 0..4
        ready 5                | go 5: 32
        input 5                | start 6 on 0: 0..2
        ready 6                | go 6: 32
        input 6                | start 7 on 0: 0..1
        ready 7                | go 7: 32
        unread 7               | start 8 on 0: 1..2
        ready 8                | go 8: 32
        unread 8               | start 9 on 0: 2..4
        ready 9                | go 9: 32
        unread 9               | start 10 on 0: 4..8
        ready 10               | go 10: 32
        unread 10              | start 11 on 0: 8..16
        ready 11               | go 11: 32
        unread 11              | start 12 on 0: 16..32
        ready 12               | go 12: 32
        unread 12              | start 13 on 0: 32..64
        ready 13               | go 13: 32
        unread 13              | start 14 on 0: 64..128
        ready 14               | go 14: 32
        unread 14              | start 15 on 0: 128..192
        ready 15               | go 15: 32
        unread 15              | start 16 on 0: 192..256
        ready 16               | go 16: 32
        unread 16              | start 17 on 0: 256..320
        ready 17               | go 17: 32
        unread 17              | start 18 on 0: 320..384
        ready 18               | go 18: 32
        unread 18              | start 19 on 0: 384..448
        ready 19               | go 19: 32
        unread 19              | start 20 on 0: 448..512
        ready 20               | go 20: 32
        unread 20              | start 21 on 0: 512..576
        """,
    ),
    (
        "where a worker from a template does not start, the next is fresh, whatever its texts; a success ends that",
        {"chunks": 4, "templates": True},
        """
        join 0 look none       | start 1 on 0: 0..8
        init 1                 |
        wait 0.6               | start 2 on 0: 8..16 fresh
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 16..24
        """,
    ),
    (
        "a warm worker that would not begin is replaced by a fresh one, uncharged",
        {"chunks": 1, "attempts": 1},
        """
        join 0                 | start 1 on 0: 0..8
        refused 1              | refuse 1, start 2 on 0: 0..8
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "OOM at the smallest batch allowed is a matter of texts",
        {"chunks": 1, "size": 4, "min_batch": 2, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..4
        ready 1                | go 1: 32
        oom 1 2x10             | start 2 on 0: 0..2 own first
        """,
    ),
    (
        "a resumed run begins with what is missing",
        {"chunks": 3, "done": 1},
        """
        join 0                 | start 1 on 0: 8..16
        join 1                 | start 2 on 1: 16..24
        """,
    ),
    (
        "a committed chunk is damaged: it is computed again, and joined",
        {"chunks": 2, "done": 2},
        """
        join 0                 | join 0
        damaged 0 1            | start 1 on 0: 8..16
        ready 1                | go 1: 32
        ok 1                   | keep 1, join 0
        """,
    ),
    (
        "two outputs: the first is joined while the second is worked on",
        {"chunks": 1, "outputs": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        ok 1                   | keep 1, join 0, start 2 on 0: 1/0..8
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 1
        """,
    ),
    (
        "B11: a bad text says nothing of the GPU, which is not looked at",
        {"chunks": 2, "size": 1, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..1, start 2 on 0: 1..2
        ready 1                | go 1: 32
        ready 2                |
        input 1 1x10           | quarantine 0, go 2: 32
        """,
    ),
    (
        "B11: a worker that never had the GPU says nothing of it",
        {"chunks": 3, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        killed 1 import        |
        ready 2                |
        wait 0.5               | go 2: 32, start 3 on 0: 16..24
        """,
    ),
    (
        "after a crash on it the GPU is looked at before the next worker gets it",
        {"chunks": 3, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                |
        crashed 1 8x10         | look 0, start 3 on 0: 16..24 own first
        looked 0 busy          |
        wait 1                 |
        wait 1                 | look 0
        looked 0 blind         | go 2: 32
        """,
    ),
    (
        "a suspected GPU stays busy: it is left out after wait_timeout",
        {"chunks": 3, "standby": 1, "wait_timeout": 5},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                |
        crashed 1 8x10         | look 0, start 3 on 0: 16..24 own first
        looked 0 busy          |
        wait 2                 | look 0
        looked 0 busy          |
        wait 4                 | look 0
        looked 0 busy          | halt 75
        """,
    ),
    (
        "a GPU that is broken when it joins is looked at again before a worker gets it: the others go on",
        {"chunks": 2},
        """
        join 0 look broken     | start 1 on 0: 0..8
        join 1                 | start 2 on 1: 8..16
        ready 1                | look 0
        looked 0 broken        | drop 0 69, end 1
        """,
    ),
    (
        "a suspected GPU is broken: 69",
        {"chunks": 3, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                |
        crashed 1 8x10         | look 0, start 3 on 0: 16..24 own first
        looked 0 broken        | halt 69
        """,
    ),
    (
        "suspicion is of one device: the other goes on",
        {"chunks": 4, "standby": 1},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16
        join 1                 | start 3 on 1: 16..24, start 4 on 1: 24..32
        ready 1                | go 1: 32
        ready 3                | go 3: 32
        ready 2                |
        ready 4                |
        crashed 1 8x10         | look 0
        ok 3                   | go 4: 32, keep 3
        """,
    ),
    (
        "what failed on one device is tried on another",
        {"chunks": 4},
        """
        join 0 look none       | start 1 on 0: 0..8
        join 1 look none       | start 2 on 1: 8..16
        ready 1                | go 1: 32
        raised 1 8x10          | start 3 on 0: 16..24 own first
        wait 1                 |
        ok 2                   | keep 2, start 4 on 1: 0..8 canary 8
        """,
    ),
    (
        "a machine that leaves ends its workers, and the others take their chunks",
        {"chunks": 2},
        """
        join 0 node n0         | start 1 on 0: 0..8
        join 1 node n1         | start 2 on 1: 8..16
        ready 1                | go 1: 32
        leaves n0              | end 1
        stopped 1              |
        ok 2                   | keep 2, start 3 on 1: 0..8
        """,
    ),
    (
        "a run that is drained starts nothing for a worker that fails",
        {"chunks": 2},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        drain                  |
        raised 1 8x10          |
        """,
    ),
    (
        "a full disk pauses all; the chunk is charged nothing",
        {"chunks": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        disk 1 8x10            | wait for all
        wait 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        ok 2                   | keep 2, join 0
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
        "host memory: one prepared worker less from now on",
        {"standby": 1, "chunks": 4, "attempts": 5},
        """
        host full              |
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        host free              | start 3 on 0: 16..24
        wait 1                 |
        """,
    ),
    (
        "a device fault: again with a canary, then the text of the batch under way",
        {"chunks": 1, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        fault 1 2x10           |
        wait 0.5               | start 2 on 0: 0..2 own first
        ready 2                | go 2: 32
        fault 2 1x10 done 0    | keep 2, quarantine 1, join 0
        """,
    ),
    (
        "one text too large for the device: quarantined after another was encoded in its attempt",
        {"chunks": 1, "size": 2, "attempts": 2, "rows": 1},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 1
        oom 1 1x90             |
        wait 0.5               | start 2 on 0: 0..2 own first
        ready 2                | go 2: 1
        oom 2 1x90 done 1      | keep 2, quarantine 0, join 0
        """,
    ),
    (
        "the device leaves with a worker that began with a canary: the text is tried on the one that comes back",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 node n0         | start 1 on 0: 0..1
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 1..2
        ready 2                | go 2: 32
        fault 2 1x10           | start 3 on 0: 1..2 canary 0
        lost 3                 | start 4 on 0: 1..2 canary 0
        leaves n0              | end 4
        lost 4                 |
        join 1 node n0         | start 5 on 1: 1..2 canary 0
        ready 5                | go 5: 32
        ok 5                   | keep 5, join 0
        """,
    ),
    (
        "a part turns out damaged: its texts are computed again",
        {"chunks": 2, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        nan 1 1                | keep 1, start 2 on 0: 1..2 canary 0
        ready 2                | go 2: 32
        disk full              |
        ok 2                   | keep 2, wait for all
        part-damaged 0 0       |
        disk free              |
        wait 2                 | start 3 on 0: 0..2
        ready 3                | go 3: 32
        ready 4                |
        """,
    ),
    (
        "E2: a GPU on which every worker fails is left out by two canaries",
        {"chunks": 12, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        join 1 look none       | start 2 on 1: 2..4
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        killed 1 2x10          | start 3 on 0: 4..6 own first
        ok 2                   | keep 2, start 4 on 1: 6..8
        ready 3                | go 3: 32
        killed 3 1x10          | start 5 on 0: 8..10 canary 2
        ready 4                | go 4: 32
        ok 4                   | keep 4, start 6 on 1: 10..12
        ready 5                | go 5: 32
        ready 6                | go 6: 32
        ok 6                   | keep 6, start 7 on 1: 12..14
        killed 5 1x10 canary   | drop 0 69
        ready 7                | go 7: 32
        """,
    ),
    (
        "a machine on which every worker fails is left out",
        {"chunks": 12, "size": 2},
        """
        join 0 node n0 look none | start 1 on 0: 0..2
        join 1 node n1 look none | start 2 on 1: 2..4
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        killed 1 2x10          | start 3 on 0: 4..6 own first
        ok 2                   | keep 2, start 4 on 1: 6..8
        ready 3                | go 3: 32
        killed 3 1x10          | start 5 on 0: 8..10 canary 2
        ready 4                | go 4: 32
        ok 4                   | keep 4, start 6 on 1: 10..12
        ready 5                | go 5: 32
        killed 5 1x10 canary   | drop n0 69
        ready 6                | go 6: 32
        ok 6                   | keep 6, start 7 on 1: 8..10 canary 2
        """,
    ),
    (
        "a machine is left out by two canaries where none of its devices works, a device where another does",
        {"chunks": 12, "size": 2},
        """
        join 0 node n0 look none | start 1 on 0: 0..2
        join 1 node n0 look none | start 2 on 1: 2..4
        join 2 node n1 look none | start 3 on 2: 4..6
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        ready 3                | go 3: 32
        ok 2                   | keep 2, start 4 on 1: 6..8
        killed 1 2x10          | start 5 on 0: 8..10 canary 2
        killed 3 2x10          | start 6 on 2: 10..12 canary 2
        ready 4                | go 4: 32
        ready 5                | go 5: 32
        ready 6                | go 6: 32
        killed 5 1x10 canary   | start 7 on 0: 12..14 canary 2
        killed 6 1x10 canary   | start 8 on 2: 14..16 canary 2
        ok 4                   | keep 4, start 9 on 1: 16..18
        ready 7                | go 7: 32
        ready 8                | go 8: 32
        ready 9                | go 9: 32
        wait 1                 |
        killed 8 1x10 canary   | drop n1 69
        killed 9 1x10 canary   | start 10 on 1: 14..16 canary 2
        ready 10               | go 10: 32
        wait 1                 |
        killed 10 1x10 canary  | start 11 on 1: 0..2 canary 2
        """,
    ),
    (
        "a machine that is left out: no worker that is prepared there gets its device",
        {"chunks": 12, "size": 2, "standby": 1},
        """
        join 0 node n0 look none | start 1 on 0: 0..2, start 2 on 0: 2..4
        join 1 node n1 look none | start 3 on 1: 4..6, start 4 on 1: 6..8
        ready 1                | go 1: 32
        ready 2                |
        ready 3                | go 3: 32
        killed 1 2x10          | go 2: 32, start 5 on 0: 8..10 own first
        ok 3                   | keep 3, start 6 on 1: 10..12
        ready 4                | go 4: 32
        ready 5                |
        killed 2 2x10          | go 5: 32, start 7 on 0: 12..14 canary 4
        ready 6                |
        killed 5 1x10 canary   | start 8 on 0: 14..16 canary 4
        ready 8                | go 8: 32
        wait 1                 |
        killed 8 1x10 canary   | drop n0 69, end 7
        """,
    ),
    (
        "B10: a waiting spell is wall time, however many workers wait in it",
        {"chunks": 4, "wait_timeout": 5},
        """
        join 0 look none       | start 1 on 0: 0..8
        join 1 look none       | start 2 on 1: 8..16
        hub 1                  | wait for all
        hub 2                  | wait for all
        wait 1                 | start 3 on 0: 8..16, start 4 on 1: 0..8
        hub 3                  | wait for all
        hub 4                  | wait for all
        wait 2                 | start 5 on 0: 0..8, start 6 on 1: 8..16
        hub 5                  | wait for all
        hub 6                  | wait for all
        wait 1.9               | start 7 on 0: 8..16, start 8 on 1: 0..8
        ready 7                | go 7: 32
        """,
    ),
    (
        "a waiting spell ends with a success",
        {"chunks": 4, "wait_timeout": 2},
        """
        join 0 look none       | start 1 on 0: 0..8
        hub 1                  | wait for all
        wait 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 8..16
        hub 3                  | wait for all
        wait 1                 | start 4 on 0: 8..16
        """,
    ),
    (
        "a suspected GPU stays busy: it is left out, and others go on",
        {"chunks": 3, "wait_timeout": 5},
        """
        join 0                 | start 1 on 0: 0..8
        join 1                 | start 2 on 1: 8..16
        ready 1                | go 1: 32
        crashed 1 8x10         | start 3 on 0: 16..24 own first
        ready 3                | look 0
        looked 0 busy          |
        wait 6                 | look 0
        looked 0 busy          | drop 0 75, end 3
        """,
    ),
    (
        "no device is looked at twice at a time",
        {"chunks": 4, "standby": 1, "per_device": 2},
        """
        join 0                 | start 1 on 0: 0..8, start 2 on 0: 8..16, start 3 on 0: 16..24
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        ready 3                |
        crashed 1 8x10         | look 0, start 4 on 0: 24..32 own first
        crashed 2 8x10         |
        wait 3                 | start 5 on 0: 0..8 own first
        looked 0 good          | go 3: 32
        """,
    ),
    (
        "on what has failed last on a machine the others are asked first",
        {"chunks": 3},
        """
        join 0 node n0 look none | start 1 on 0: 0..8
        join 1 node n0 look none | start 2 on 1: 8..16
        join 2 node n1 look none | start 3 on 2: 16..24
        ready 1                | go 1: 32
        raised 1 8x10          |
        wait 1                 |
        ready 3                | go 3: 32
        ok 3                   | keep 3, start 4 on 2: 0..8 canary 16
        """,
    ),
    (
        "a lesson narrower than what comes later stands",
        {"chunks": 3, "per_device": 3},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16, start 3 on 0: 16..24
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        ready 3                | go 3: 32
        oom 1 8x10             | learn a 4, start 4 on 0: 0..8
        oom 2 32x10            | start 5 on 0: 8..16
        oom 3 16x10            | start 6 on 0: 16..24
        """,
    ),
    (
        "what did not fit is learnt in tokens: longer texts get fewer rows without another failure",
        {"chunks": 2},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 32x10            | learn a 16, start 2 on 0: 0..8
        ready 2                | go 2: 16
        ok 2                   | keep 2, start 3 on 0: 8..16
        ready 3                | go 3: 16
        oom 3 2x500            | start 4 on 0: 8..16
        ready 4                | go 4: 1
        """,
    ),
    (
        "an out-of-memory fault is charged to no chunk",
        {"chunks": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 32x10            | learn a 16, start 2 on 0: 0..8
        ready 2                | go 2: 16
        oom 2 16x10            | learn a 8, start 3 on 0: 0..8
        ready 3                | go 3: 8
        oom 3 8x10             | learn a 4, start 4 on 0: 0..8
        ready 4                | go 4: 4
        ok 4                   | keep 4, join 0
        """,
    ),
    (
        "stop while a failed chunk waits for its second try",
        {"chunks": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        raised 1 8x10          |
        stop                   |
        wait 5                 |
        """,
    ),
    (
        "an output that is complete but for a chunk that was given up is not joined",
        {"chunks": 2, "attempts": 1},
        """
        host full              |
        join 0 look none       | start 1 on 0: 0..8, set aside 0
        host free              | start 2 on 0: 8..16
        wait 1                 |
        """,
    ),
    (
        "three chunks given up in a row end the run: it is hardly the chunks",
        {"chunks": 4, "attempts": 1},
        """
        host full              |
        join 0 look none       | start 1 on 0: 0..8, set aside 0
        wait 1                 | start 2 on 0: 8..16, set aside 1
        wait 1                 | start 3 on 0: 16..24, halt 75
        """,
    ),
    (
        "a node's disk is full: its own devices wait, and the others take its chunks",
        {"chunks": 3, "wait_timeout": 3},
        """
        join 0 node n0         | start 1 on 0: 0..8
        join 1 node n1         | start 2 on 1: 8..16
        ready 2                | go 2: 32
        disk 1                 | wait for 0
        wait 1                 | start 3 on 0: 16..24
        disk 3                 | wait for 0
        ok 2                   | keep 2, start 4 on 1: 0..8
        wait 4                 |
        ready 4                | go 4: 32
        ok 4                   | keep 4, start 5 on 1: 16..24
        """,
    ),
    (
        "B2: halving has no limit while batches shrink",
        {"chunks": 1, "rows": 16777216},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 16777216
        oom 1 16777216x1       | learn a 8388608, start 2 on 0: 0..8
        ready 2                | go 2: 8388608
        oom 2 8388608x1        | learn a 4194304, start 3 on 0: 0..8
        ready 3                | go 3: 4194304
        oom 3 4194304x1        | learn a 2097152, start 4 on 0: 0..8
        ready 4                | go 4: 2097152
        oom 4 2097152x1        | learn a 1048576, start 5 on 0: 0..8
        ready 5                | go 5: 1048576
        oom 5 1048576x1        | learn a 524288, start 6 on 0: 0..8
        ready 6                | go 6: 524288
        oom 6 524288x1         | learn a 262144, start 7 on 0: 0..8
        ready 7                | go 7: 262144
        oom 7 262144x1         | learn a 131072, start 8 on 0: 0..8
        ready 8                | go 8: 131072
        oom 8 131072x1         | learn a 65536, start 9 on 0: 0..8
        ready 9                | go 9: 65536
        oom 9 65536x1          | learn a 32768, start 10 on 0: 0..8
        ready 10               | go 10: 32768
        oom 10 32768x1         | learn a 16384, start 11 on 0: 0..8
        ready 11               | go 11: 16384
        oom 11 16384x1         | learn a 8192, start 12 on 0: 0..8
        ready 12               | go 12: 8192
        oom 12 8192x1          | learn a 4096, start 13 on 0: 0..8
        ready 13               | go 13: 4096
        oom 13 4096x1          | learn a 2048, start 14 on 0: 0..8
        ready 14               | go 14: 2048
        oom 14 2048x1          | learn a 1024, start 15 on 0: 0..8
        ready 15               | go 15: 1024
        oom 15 1024x1          | learn a 512, start 16 on 0: 0..8
        ready 16               | go 16: 512
        oom 16 512x1           | learn a 256, start 17 on 0: 0..8
        ready 17               | go 17: 256
        oom 17 256x1           | learn a 128, start 18 on 0: 0..8
        ready 18               | go 18: 128
        oom 18 128x1           | learn a 64, start 19 on 0: 0..8
        ready 19               | go 19: 64
        oom 19 64x1            | learn a 32, start 20 on 0: 0..8
        ready 20               | go 20: 32
        oom 20 32x1            | learn a 16, start 21 on 0: 0..8
        ready 21               | go 21: 16
        oom 21 16x1            | learn a 8, start 22 on 0: 0..8
        ready 22               | go 22: 8
        oom 22 8x1             | learn a 4, start 23 on 0: 0..8
        """,
    ),
    (
        "E1: the model cannot be loaded: other chunks show it, no text is touched, and the third in a row ends the run",
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
        ready 3                | go 3: 32
        ok 3                   | keep 3
        wait 0.5               | start 4 on 0: 0..8, start 5 on 0: 8..16
        """,
    ),
    (
        "X9: starts that fail where it worked before are waited out, and end the run after wait_timeout",
        {"chunks": 3, "wait_timeout": 5},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 8..16
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
        "D2: a GPU that fails twice and then works has lost nothing",
        {"chunks": 2, "attempts": 3},
        """
        join 0 look none       | start 1 on 0: 0..8
        init 1                 |
        wait 0.5               | start 2 on 0: 8..16
        init 2                 |
        wait 1                 | start 3 on 0: 0..8
        ready 3                | go 3: 32
        ok 3                   | keep 3
        """,
    ),
    (
        "E2: a GPU on which no worker starts is left out; its chunks go elsewhere, uncharged",
        {"chunks": 6, "attempts": 3},
        """
        join 0 look none       | start 1 on 0: 0..8
        join 1 look none       | start 2 on 1: 8..16
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        init 1                 |
        wait 0.5               | start 3 on 0: 16..24
        init 3                 |
        ok 2                   | keep 2, start 4 on 1: 24..32
        wait 1                 | start 5 on 0: 32..40
        init 5                 | drop 0 69
        ready 4                | go 4: 32
        ok 4                   | keep 4, start 6 on 1: 32..40
        """,
    ),
    (
        "E3: a model larger than its GPU, and nobody else on it: 69 at once",
        {"chunks": 3},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        busy 1 alone           | halt 69
        """,
    ),
    (
        "E3: where another worker of ours holds the memory, it is waited for",
        {"chunks": 3, "per_device": 2},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        busy 2 ours            | wait for 0
        """,
    ),
    (
        "E5: nobody can be asked, and the smallest batch does not fit: wait before anything is taken apart",
        {"chunks": 1, "size": 2, "rows": 1, "wait_timeout": 2},
        """
        join 0 look blind      | start 1 on 0: 0..2
        ready 1                | go 1: 1
        oom 1 1x90 blind       | wait for 0
        wait 1                 | start 2 on 0: 0..2
        ready 2                | look 0
        looked 0 blind         | go 2: 1
        ok 2                   | keep 2, join 0
        """,
    ),
    (
        "E5: nobody can be asked, and batches as large have fitted: wait, and learn nothing",
        {"chunks": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 4x10+4 blind     | wait for 0
        wait 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        """,
    ),
    (
        "E5: a neighbour who came takes the memory: wait, and learn nothing",
        {"chunks": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 8x10 came        | wait for 0
        wait 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        """,
    ),
    (
        "E5: the neighbour stays: after wait_timeout batches get smaller, and the next is not waited for again",
        {"chunks": 1, "wait_timeout": 1},
        """
        join 0 look none       | start 1 on 0: 0..8
        ready 1                | go 1: 32
        oom 1 8x10 came        | wait for 0
        wait 1                 | start 2 on 0: 0..8
        ready 2                | go 2: 32
        oom 2 8x10 came        | learn a 4, start 3 on 0: 0..8
        ready 3                | go 3: 4
        oom 3 4x10 came        | learn a 2, start 4 on 0: 0..8
        """,
    ),
    (
        "a shorter pause does not end a longer one",
        {"chunks": 4, "per_device": 2},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        busy 1                 | wait for 0
        crashed 2 import       |
        wait 0.6               |
        wait 0.4               | start 3 on 0: 0..8, start 4 on 0: 8..16
        """,
    ),
    (
        "B5: a text that hangs is looked at twice alone, each time after a canary",
        {"chunks": 3, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        hung 1 2x10            | start 2 on 0: 2..4 own first
        ready 2                | go 2: 32
        ok 2                   | keep 2, start 3 on 0: 4..6
        wait 0.5               |
        ready 3                | go 3: 32
        ok 3                   | keep 3, start 4 on 0: 0..2 canary 2
        ready 4                | go 4: 32
        hung 4 2x10            | start 5 on 0: 0..1 canary 2
        ready 5                | go 5: 32
        ok 5                   | keep 5, start 6 on 0: 1..2 canary 0
        ready 6                | go 6: 32
        hung 6 1x10            | start 7 on 0: 1..2 canary 0
        ready 7                | go 7: 32
        hung 7 1x10            | quarantine 1, join 0
        """,
    ),
    (
        "G10: all hangs from some time on: two canaries hang, and the run ends",
        {"chunks": 5, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 2..4
        ready 2                | go 2: 32
        hung 2 2x10            | start 3 on 0: 4..6 canary 0
        ready 3                | go 3: 32
        wait 0.5               |
        hung 3 1x10 canary     | start 4 on 0: 2..4 canary 0
        ready 4                | go 4: 32
        hung 4 1x10 canary     | halt 75
        """,
    ),
    (
        "all hangs before a text is encoded: a short one shows that the device can do it",
        {"chunks": 2, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        hung 1 2x10            | start 2 on 0: 2..4 own first
        ready 2                | go 2: 32
        hung 2 1x10 done 3     | keep 2, start 3 on 0: 2..3 canary 3
        wait 1                 |
        ready 3                | go 3: 32
        hung 3 1x10            | quarantine 2, start 4 on 0: 0..2 canary 3
        ready 4                | go 4: 32
        hung 4 1x10            | start 5 on 0: 0..1 canary 3
        """,
    ),
    (
        "three short texts hang as well, and none was ever encoded: the run ends",
        {"chunks": 2, "size": 5},
        """
        join 0 look none       | start 1 on 0: 0..5
        ready 1                | go 1: 32
        hung 1 5x10            | start 2 on 0: 5..10 own first
        ready 2                | go 2: 32
        hung 2 1x10 canary     |
        wait 1                 | start 3 on 0: 0..5 own 2
        ready 3                | go 3: 32
        hung 3 1x10 canary     | start 4 on 0: 5..10 own 3
        wait 2                 |
        ready 4                | go 4: 32
        hung 4 1x10 canary     | halt 69
        """,
    ),
    (
        "a canary that meets a full disk says nothing: the text is tried again with one",
        {"chunks": 2, "size": 1, "attempts": 1},
        """
        join 0 look none       | start 1 on 0: 0..1
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 1..2
        ready 2                | go 2: 32
        fault 2 1x10           | start 3 on 0: 1..2 canary 0
        ready 3                | go 3: 32
        disk 3                 | wait for all
        wait 1                 | start 4 on 0: 1..2 canary 0
        ready 4                | go 4: 32
        fault 4 1x10           | quarantine 1, join 0
        """,
    ),
    (
        "B1: 36 failures in a row end no run, while each of them makes something smaller",
        {"chunks": 2, "size": 12, "done": 1, "attempts": 2},
        """
        join 0 look none       | start 1 on 0: 12..24
        ready 1                | go 1: 32
        raised 1 12x10         |
        wait 1                 | start 2 on 0: 12..24 canary 0
        ready 2                | go 2: 32
        raised 2 12x10         | start 3 on 0: 12..18 canary 0
        ready 3                | go 3: 32
        raised 3 6x10          | start 4 on 0: 12..15 canary 0
        ready 4                | go 4: 32
        raised 4 3x10          | start 5 on 0: 12..13 canary 0
        ready 5                | go 5: 32
        raised 5 1x10          | start 6 on 0: 12..13 canary 0
        ready 6                | go 6: 32
        raised 6 1x10          | quarantine 12, start 7 on 0: 13..15 canary 0
        ready 7                | go 7: 32
        raised 7 2x10          | start 8 on 0: 13..14 canary 0
        ready 8                | go 8: 32
        raised 8 1x10          | start 9 on 0: 13..14 canary 0
        ready 9                | go 9: 32
        raised 9 1x10          | quarantine 13, start 10 on 0: 14..15 canary 0
        ready 10               | go 10: 32
        raised 10 1x10         | start 11 on 0: 14..15 canary 0
        ready 11               | go 11: 32
        raised 11 1x10         | quarantine 14, start 12 on 0: 15..18 canary 0
        ready 12               | go 12: 32
        raised 12 3x10         | start 13 on 0: 15..16 canary 0
        ready 13               | go 13: 32
        raised 13 1x10         | start 14 on 0: 15..16 canary 0
        ready 14               | go 14: 32
        raised 14 1x10         | quarantine 15, start 15 on 0: 16..18 canary 0
        ready 15               | go 15: 32
        raised 15 2x10         | start 16 on 0: 16..17 canary 0
        ready 16               | go 16: 32
        raised 16 1x10         | start 17 on 0: 16..17 canary 0
        ready 17               | go 17: 32
        raised 17 1x10         | quarantine 16, start 18 on 0: 17..18 canary 0
        ready 18               | go 18: 32
        raised 18 1x10         | start 19 on 0: 17..18 canary 0
        ready 19               | go 19: 32
        raised 19 1x10         | quarantine 17, start 20 on 0: 18..24 canary 0
        ready 20               | go 20: 32
        raised 20 6x10         | start 21 on 0: 18..21 canary 0
        ready 21               | go 21: 32
        raised 21 3x10         | start 22 on 0: 18..19 canary 0
        ready 22               | go 22: 32
        raised 22 1x10         | start 23 on 0: 18..19 canary 0
        ready 23               | go 23: 32
        raised 23 1x10         | quarantine 18, start 24 on 0: 19..21 canary 0
        ready 24               | go 24: 32
        raised 24 2x10         | start 25 on 0: 19..20 canary 0
        ready 25               | go 25: 32
        raised 25 1x10         | start 26 on 0: 19..20 canary 0
        ready 26               | go 26: 32
        raised 26 1x10         | quarantine 19, start 27 on 0: 20..21 canary 0
        ready 27               | go 27: 32
        raised 27 1x10         | start 28 on 0: 20..21 canary 0
        ready 28               | go 28: 32
        raised 28 1x10         | quarantine 20, start 29 on 0: 21..24 canary 0
        ready 29               | go 29: 32
        raised 29 3x10         | start 30 on 0: 21..22 canary 0
        ready 30               | go 30: 32
        raised 30 1x10         | start 31 on 0: 21..22 canary 0
        ready 31               | go 31: 32
        raised 31 1x10         | quarantine 21, start 32 on 0: 22..24 canary 0
        ready 32               | go 32: 32
        raised 32 2x10         | start 33 on 0: 22..23 canary 0
        ready 33               | go 33: 32
        raised 33 1x10         | start 34 on 0: 22..23 canary 0
        ready 34               | go 34: 32
        raised 34 1x10         | quarantine 22, start 35 on 0: 23..24 canary 0
        ready 35               | go 35: 32
        raised 35 1x10         | start 36 on 0: 23..24 canary 0
        ready 36               | go 36: 32
        raised 36 1x10         | quarantine 23, join 0
        """,
    ),
    (
        "B4: more bad vectors than good ones: each bad row is tried alone, and the good ones are kept",
        {"chunks": 1, "size": 10},
        """
        join 0 look none       | start 1 on 0: 0..10
        ready 1                | go 1: 32
        nan 1 0,1,2,3,4,5      | keep 1, start 2 on 0: 0..1 canary 6
        ready 2                | go 2: 32
        nan 2 0                | quarantine 0, start 3 on 0: 1..2 canary 6
        ready 3                | go 3: 32
        nan 3 0                | quarantine 1, start 4 on 0: 2..3 canary 6
        ready 4                | go 4: 32
        nan 4 0                | quarantine 2, start 5 on 0: 3..4 canary 6
        ready 5                | go 5: 32
        nan 5 0                | quarantine 3, start 6 on 0: 4..5 canary 6
        ready 6                | go 6: 32
        nan 6 0                | quarantine 4, start 7 on 0: 5..6 canary 6
        ready 7                | go 7: 32
        nan 7 0                | quarantine 5, join 0
        """,
    ),
    (
        "X1: a GPU that is busy in every batch is waited for no longer than wait_timeout",
        {"chunks": 1, "wait_timeout": 5},
        """
        join 0                 | start 1 on 0: 0..8
        ready 1                | go 1: 32
        exclusive 1            | wait for 0
        wait 3                 | start 2 on 0: 0..8
        ready 2                | look 0
        looked 0 good          | go 2: 32
        exclusive 2            | wait for 0
        wait 3                 | start 3 on 0: 0..8
        ready 3                | look 0
        looked 0 good          | go 3: 32
        exclusive 3            | halt 75
        """,
    ),
    (
        "salvage before the decision: a twentieth failure in a row that leaves a vector ends no run",
        {"chunks": 25, "size": 3, "done": 1},
        """
        join 0 look none       | start 1 on 0: 3..6
        ready 1                | go 1: 32
        raised 1 2x10          | start 2 on 0: 6..9 canary 0
        ready 2                | go 2: 32
        raised 2 2x10          | start 3 on 0: 9..12 canary 0
        ready 3                | go 3: 32
        raised 3 2x10          | start 4 on 0: 12..15 canary 0
        ready 4                | go 4: 32
        raised 4 2x10          | start 5 on 0: 15..18 canary 0
        ready 5                | go 5: 32
        raised 5 2x10          | start 6 on 0: 18..21 canary 0
        ready 6                | go 6: 32
        raised 6 2x10          | start 7 on 0: 21..24 canary 0
        ready 7                | go 7: 32
        raised 7 2x10          | start 8 on 0: 24..27 canary 0
        ready 8                | go 8: 32
        raised 8 2x10          | start 9 on 0: 27..30 canary 0
        ready 9                | go 9: 32
        raised 9 2x10          | start 10 on 0: 30..33 canary 0
        ready 10               | go 10: 32
        raised 10 2x10         | start 11 on 0: 33..36 canary 0
        ready 11               | go 11: 32
        raised 11 2x10         | start 12 on 0: 36..39 canary 0
        ready 12               | go 12: 32
        raised 12 2x10         | start 13 on 0: 39..42 canary 0
        ready 13               | go 13: 32
        raised 13 2x10         | start 14 on 0: 42..45 canary 0
        ready 14               | go 14: 32
        raised 14 2x10         | start 15 on 0: 45..48 canary 0
        ready 15               | go 15: 32
        raised 15 2x10         | start 16 on 0: 48..51 canary 0
        ready 16               | go 16: 32
        raised 16 2x10         | start 17 on 0: 51..54 canary 0
        ready 17               | go 17: 32
        raised 17 2x10         | start 18 on 0: 54..57 canary 0
        ready 18               | go 18: 32
        raised 18 2x10         | start 19 on 0: 57..60 canary 0
        ready 19               | go 19: 32
        raised 19 2x10         | start 20 on 0: 60..63 canary 0
        ready 20               | go 20: 32
        raised 20 2x10 done 60 | keep 20, start 21 on 0: 63..66 canary 0
        ready 21               | go 21: 32
        ok 21                  | keep 21, start 22 on 0: 66..69
        """,
    ),
    (
        "a fault of the output as a whole is the model's where the canary shows it: two canaries, and 78",
        {"chunks": 3, "size": 2},
        """
        join 0 look none       | start 1 on 0: 0..2
        ready 1                | go 1: 32
        ok 1                   | keep 1, start 2 on 0: 2..4
        ready 2                | go 2: 32
        dimension 2 2x10       | start 3 on 0: 4..6 canary 0
        wait 0.5               |
        ready 3                | go 3: 32
        dimension 3 1x10 canary | start 4 on 0: 2..4 canary 0
        wait 0.5               |
        ready 4                | go 4: 32
        dimension 4 1x10 canary | halt 78
        """,
    ),
    (
        "a lesson that is narrower holds: a worker that got its limits before teaches no wider one",
        {"chunks": 3, "per_device": 2},
        """
        join 0 look none       | start 1 on 0: 0..8, start 2 on 0: 8..16
        ready 1                | go 1: 32
        ready 2                | go 2: 32
        oom 1 32x10            | learn a 16, start 3 on 0: 0..8
        ready 3                | go 3: 16
        oom 3 16x10            | learn a 8, start 4 on 0: 0..8
        oom 2 32x10            | start 5 on 0: 8..16
        ready 4                | go 4: 8
        """,
    ),
]
"""(what it shows, what is given, what happens and what is said)."""
