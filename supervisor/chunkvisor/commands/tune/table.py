"""The result of `tune` as a table and as plain values. Pure."""

from typing import Any

from chunkvisor.commands.tune.compare import Measured
from chunkvisor.commands.tune.tuning import Tuning
from chunkvisor.units import counted, human_time

_HEAD = ("dtype", "tokens", "workers", "texts/s", "cosine", "least", "neighbours", "all of it", "cost")


def draw(tuning: Tuning, least_cosine: float, price_per_hour: float | None) -> list[str]:
    """Lines: a row for each candidate, the recommended one marked, and below them what to do."""
    rows = [_HEAD, *(_cells(tuning, each, price_per_hour) for each in tuning.measured)]
    if price_per_hour is None:
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, each in zip(rows, (None, *tuning.measured), strict=True):
        mark = "*" if each is not None and each is tuning.best else " "
        lines.append(
            f"{mark} " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
        if each is not None and each.problem:
            lines.append(f"    failed: {each.problem}")
    to = "" if tuning.measured[0].problem else "; cosines are to float32"
    lines += ["", f"tried on {counted(tuning.sample, 'text')} of {tuning.texts:,}{to}."]
    if tuning.note:
        lines.append(f"Note: {tuning.note}.")
    near = f"a least cosine of {least_cosine:g} or more"
    if tuning.best is None:
        lines.append(f"Nothing has {near}." if not tuning.vectors_fixed else "Nothing makes the workdir's vectors.")
    else:
        which = "that makes the vectors of the workdir" if tuning.vectors_fixed else f"with {near}"
        lines.append(f"* is recommended: the fastest {which}.")
        lines.append("Of two that differ by less than 5 %, it is the one that was tried first.")
        changes = [f"{section}.{key}: {value}" for (section, key), value in tuning.changes.items()]
        lines.append(
            f"To set in the config: {', '.join(changes)}" if changes else "The config has these settings already."
        )
    return lines


def to_json(tuning: Tuning, price_per_hour: float | None) -> dict[str, Any]:
    """Plain values: numbers, hours, and the price's own currency."""
    return {
        "texts": tuning.texts,
        "sample": tuning.sample,
        "devices": tuning.devices,
        "note": tuning.note,
        "changes": {f"{section}.{key}": value for (section, key), value in tuning.changes.items()},
        "candidates": [_values(tuning, each, price_per_hour) for each in tuning.measured],
    }


def _values(tuning: Tuning, each: Measured, price_per_hour: float | None) -> dict[str, Any]:
    hours = tuning.hours(each)
    alike = each.likeness
    return {
        "settings": {f"{section}.{key}": value for (section, key), value in each.candidate.values().items()},
        "texts_per_s": round(each.texts_per_s, 3),
        "mean_cosine": alike and alike.mean_cosine,
        "least_cosine": alike and alike.least_cosine,
        "same_neighbours": alike and alike.neighbours,
        "hours": hours,
        "cost": None if price_per_hour is None or hours is None else hours * price_per_hour,
        "problem": each.problem,
        "recommended": each is tuning.best,
    }


def _cells(tuning: Tuning, each: Measured, price_per_hour: float | None) -> tuple[str, ...]:
    candidate, hours = each.candidate, tuning.hours(each)
    setting = (candidate.dtype, str(candidate.batch_tokens), str(candidate.per_device))
    if each.likeness is None or hours is None:
        return (*setting, *["-"] * (len(_HEAD) - len(setting)))
    alike = each.likeness
    cost = "" if price_per_hour is None else f"{hours * price_per_hour:.2f}"
    rate = f"{each.texts_per_s:,.0f}" if each.texts_per_s >= 10 else f"{each.texts_per_s:.2g}"
    likeness = (f"{alike.mean_cosine:.5f}", f"{alike.least_cosine:.5f}", f"{alike.neighbours:.0%}")
    return (*setting, rate, *likeness, human_time(hours * 3600), cost)
