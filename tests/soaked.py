"""What only the soak tries: more examples, and the wider half of a table."""

from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings

from harness import SOAK_SEED

Row = TypeVar("Row")


def soaked(count: int) -> settings:
    """So many examples in a soak; in a test a tenth. The test is marked `soak` as well, so that the
    soak finds it.
    """
    return settings(
        max_examples=count if SOAK_SEED else -(-count // 10),
        deadline=None,
        derandomize=not SOAK_SEED,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def wide(*rows: Row) -> tuple[Row, ...]:
    """Rows of a table that say nothing new about the code, but might of a machine: `make test`
    leaves them out.

    The test that goes through the table is marked `soak`.
    """
    return rows if SOAK_SEED else ()
