"""An engine's Prometheus text, read for the names that are wanted."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kvsched.foundation.errors import KvschedError, UsageError

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """Samples by name, ``_total`` taken off: (labels, value) of each."""

    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """Return the sum over all label sets, so over all engines of a server; None if absent."""
        found = self.samples.get(name)
        return None if not found else math.fsum(value for _, value in found)

    def mean(self, name: str) -> float | None:
        """Return the mean over all label sets."""
        found = self.samples.get(name)
        return None if not found else math.fsum(value for _, value in found) / len(found)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of every sample of a name."""
        return [dict(labels) for labels, _ in self.samples.get(name, [])]


def load_parser() -> Any:
    """Return prometheus-client's parser. Raises UsageError where it is not installed."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise UsageError(
            "an engine's metrics need prometheus-client: pip install 'kvsched[bench]'"
        ) from error
    return text_string_to_metric_families


def parse(text: str, wanted: Collection[str]) -> Scrape:
    """Return the samples of the names ``wanted``, given with ``_total`` or without.

    Only their lines are parsed: an engine has thousands, and a parser holds up who sends the load.
    Where a name is there both ways, the one with ``_total`` counts. NaN is left out. Raises
    KvschedError for text that is no metrics.
    """
    families = load_parser()
    marks = tuple(wanted)
    lines = [line for line in text.splitlines() if line.startswith(marks)]
    found: dict[str, dict[bool, list[tuple[Labels, float]]]] = {}
    try:
        for family in families("\n".join(lines) + "\n"):
            for sample in family.samples:
                bare = sample.name.removesuffix("_total")
                name = sample.name if sample.name in wanted else bare
                if name not in wanted or math.isnan(sample.value):
                    continue
                labels = tuple(sorted(sample.labels.items()))
                ways = found.setdefault(name, {})
                ways.setdefault(bare != sample.name, []).append((labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as error:
        raise KvschedError(f"no metrics: {' '.join(str(error).split())[:200]}") from error
    return Scrape({name: ways.get(True) or ways[False] for name, ways in found.items()})
