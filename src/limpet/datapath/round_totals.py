"""What all rounds of a loop did, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RoundTotals:
    """Since the agent's start."""

    rounds: int = 0
    changes: int = 0
    failures: int = 0
    """A change that failed is counted in every round that tried it."""
    took_s: float = 0.0

    def add(self, *, changes: int, failures: int, took_ms: float) -> None:
        self.rounds += 1
        self.changes += changes
        self.failures += failures
        self.took_s += took_ms / 1e3
