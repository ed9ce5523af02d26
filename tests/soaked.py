"""How many examples a test tries: in `make test` a tenth of those of a soak, and the same each time."""

from hypothesis import HealthCheck, Phase, settings

from harness import SOAK_SEED


def soaked(count: int) -> settings:
    """So many examples in a soak; in a test a tenth. The test is marked `soak` as well, so that the soak finds it."""
    return settings(
        max_examples=count if SOAK_SEED else -(-count // 10),
        deadline=None,
        derandomize=not SOAK_SEED,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
