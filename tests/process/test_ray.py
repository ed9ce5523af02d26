"""The engine Ray on a cluster whose nodes are all on this machine; each of them stands for a
machine.
"""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from local_cluster import LocalCluster, local_cluster

from harness import MARK, SOAK_SEED, Workplace, bearing, finish, kill, wait_for, write_program

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (extra: ray)"
)

TEXTS = [f"text {number}" for number in range(60)]
"""Six chunks of ten."""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A head that does no work, and a node with one processor; two of them for the soak."""
    soaks = SOAK_SEED or "soak" in request.config.option.markexpr
    with local_cluster(3 if soaks else 2, head_cores=0) as made:
        yield made


@pytest.fixture
def place(workplace: Workplace, new_interpreters: None) -> Workplace:
    """A workplace whose config is still to be written, and whose runs are new interpreters, as a
    bridge has to be.
    """
    workplace.write_source(TEXTS)
    return workplace


def configure(place: Workplace, cluster: LocalCluster, encoder: str, **changes: Any) -> None:
    """A config that uses the cluster."""
    place.write_config(encoder, engine={"kind": "ray", "address": cluster.address}, **changes)


def bridges() -> list[psutil.Process]:
    """Bridges of this test's runs."""
    found = []
    for each in bearing(os.environ[MARK]):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "chunkvisor.engine.ray.bridge" in each.cmdline():
                found.append(each)
    return found


def agents() -> list[psutil.Process]:
    """Agents on the nodes, whose daemons are children of this process."""
    below = psutil.Process().children(recursive=True)
    return [
        process
        for process in below
        if process.is_running() and process.name().startswith("ray::Agent")
    ]


def test_no_cluster(place: Workplace) -> None:
    """Where no cluster answers, the run ends with 75 after recovery.wait_timeout, and says what to
    do.
    """
    place.write_config(
        "good:make", engine={"kind": "ray", "address": "127.0.0.1:1"}, recovery={"wait_timeout": 1}
    )
    assert "ray start --head" in place.ends(75).stderr


@pytest.mark.timeout(
    900
)  # two nodes and some ten workers, one after the other where the machine is busy
def test_vectors_and_faults_come_home(place: Workplace, cluster: LocalCluster) -> None:
    """Every row has its vector; a crash, a fault of memory and a NaN on a node get the outcomes
    that they get here.
    """
    plan = {"out/0": "segfault@encode", "out/1": "cuda_oom@encode", "out/2": "nan@encode"}
    plan |= {"out/3": "fault_is_a_pipe@encode"}
    configure(
        place, cluster, "misbehaving:make", model__kwargs={"plan": plan}, encode={"batch_size": 4}
    )

    finish(place.begin(), timeout_s=600, code=0)
    place.has(TEXTS)
    failed = {event["chunk"]: event for event in place.named("attempt_failed")}
    outcomes = {chunk: event["outcome"] for chunk, event in failed.items()}
    assert outcomes == {0: "crashed", 1: "gpu_oom", 2: "bad_output", 3: "crashed"}
    assert "Segmentation fault" in failed[0]["reason"]
    wait_for(lambda: not agents())  # the daemon of a busy node reaps them later


def test_a_run_that_is_half_done_continues_on_the_cluster(
    place: Workplace, cluster: LocalCluster
) -> None:
    """What this machine has done stays, and nodes do the rest."""
    place.write_config("waiting:make", model__kwargs={"chunk": 1})
    run = place.begin()
    wait_for((place.folder / "waiting").exists)
    kill(run)
    (place.folder / "release").touch()
    place.set(engine={"kind": "ray", "address": cluster.address})
    assert "5 of 6 chunks" in finish(place.begin(), timeout_s=200, code=0).stderr
    place.has(TEXTS)


@pytest.mark.soak(only=True)
def test_a_node_dies_and_another_joins(
    place: Workplace, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was under way on it is lost, which costs no try; a node that joins meanwhile does it."""
    configure(place, cluster, "waiting:make", model__kwargs={"chunk": 1}, recovery__attempts=1)
    run = place.begin()
    wait_for((place.folder / "waiting").exists)
    wait_for(lambda: len(place.named("chunk_committed")) == 5)  # all the others
    device = next(
        event["device"] for event in place.named("attempt_started") if event["chunk"] == 1
    )
    with monkeypatch.context() as patch:
        patch.delenv(MARK)  # the cluster outlives this test
        cluster.add()
    wait_for(lambda: len(place.named("node_joined")) == 3)

    cluster.kill(place.named("node_joined")[device]["node"])
    wait_for(lambda: place.named("attempt_failed"))
    place.release()
    ended = finish(run, code=0)
    place.has(TEXTS)
    assert [event["outcome"] for event in place.named("attempt_failed")] == ["lost"]
    assert place.named("node_joined")[device]["node"] in ended.stderr


@pytest.mark.soak(only=True)
def test_a_killed_parent_leaves_nothing_running(place: Workplace, cluster: LocalCluster) -> None:
    """Bridge, agents and workers end, and the same command goes on."""
    configure(place, cluster, "waiting:make", model__kwargs={"chunk": 1})
    run = place.begin()
    wait_for((place.folder / "waiting").exists)
    wait_for(lambda: len(place.named("chunk_committed")) == 5)
    assert len(agents()) == 2

    kill(run)

    wait_for(lambda: not bridges() and not agents())
    place.release()
    place.gives(TEXTS)
    assert len(place.named("chunk_committed")) == 6


@pytest.mark.soak(only=True)
def test_a_killed_bridge_ends_the_run(place: Workplace, cluster: LocalCluster) -> None:
    """With 75: the same command completes it."""
    configure(place, cluster, "waiting:make", model__kwargs={"chunk": 1}, recovery__attempts=1)
    run = place.begin()
    wait_for((place.folder / "waiting").exists)

    (bridge,) = bridges()
    bridge.kill()
    finish(run, code=75)

    place.release()
    place.gives(TEXTS)


@pytest.mark.soak(only=True)
def test_a_broken_node_is_left_out(
    place: Workplace, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node on which all fails is named and left out; no text is blamed, and no chunk is charged
    for it.
    """
    with monkeypatch.context() as patch:
        patch.delenv(MARK)
        patch.setenv("BROKEN_NODE", "1")
        cluster.add()
    texts = [f"text {number}" for number in range(200)]
    place.write_source(texts)
    kwargs = {"notes": str(place.folder)}
    configure(place, cluster, "broken_node:make", model__kwargs=kwargs, recovery__attempts=2)

    ended = place.ends(0)

    (dropped,) = place.named("device_dropped")
    cluster.kill(dropped["device"])
    place.has(texts)
    assert not place.named("chunk_split", "quarantined", "chunk_set_aside")
    assert len(place.named("attempt_failed")) >= 3
    assert dropped["device"] in ended.stderr


SMI = """#!/bin/sh
case "$*" in
  *--query-gpu=index*) for i in 0 1; do echo "$i, GPU-0000000$i-aaaa, NVIDIA Fake, 81920, 00000000:0$i:00.0"; done ;;
  *--query-gpu=memory.used*) echo 3 ;;
  *--query-compute-apps*) ;;
  *) echo "<nvidia_smi_log></nvidia_smi_log>" ;;
esac
"""


@pytest.mark.soak(only=True)
def test_gpus_of_a_node(
    place: Workplace,
    cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The GPUs of a node are found and asked for there; one that is faulty is left out, and the
    other goes on.
    """
    folder = tmp_path_factory.mktemp("bin")
    write_program(folder / "nvidia-smi", SMI)
    with monkeypatch.context() as patch:
        patch.delenv(MARK)
        patch.setenv("PATH", str(folder), prepend=":")
        cluster.add(gpus=2)
    kwargs = {"wait_s": 0.1, "faulty": "GPU-00000001-aaaa"}
    configure(
        place,
        cluster,
        "gpus:make",
        device="cuda",
        model__kwargs=kwargs,
        workers={"start": "auto", "standby": 1},
    )

    place.gives(TEXTS)
    (joined,) = place.named("node_joined")
    assert joined["device"].count("NVIDIA Fake") == 2
    (dropped,) = place.named("device_dropped")
    assert "GPU-00000001" in dropped["device"]
    assert joined["node"] in dropped["device"]
    cluster.kill(joined["node"])
