"""The time before the first batch counts as a device's idle time, not as computing."""

from harness import Workplace


def test_opening_is_idle_time(workplace: Workplace) -> None:
    """Every worker's figures tell what it opened with apart from what it computed."""
    workplace.write_source([f"text {number}" for number in range(4)])
    workplace.write_config("good:make", **{"chunk.size": 2})

    assert workplace.run().returncode == 0
    ended = [event for event in workplace.events() if event["event"] == "worker_ended"]
    assert len(ended) == 2
    assert all(0 < event["opening_s"] <= event["idle_s"] for event in ended)
    assert all(event["busy_s"] >= 0 for event in ended)
