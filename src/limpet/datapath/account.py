"""What became of a part's rounds, for people and for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """What became of a part's rounds since the agent's start."""

    rounds: int = 0
    changes: int = 0
    failed: int = 0
    """A change that failed is counted in every round that tried it."""
    took_s: float = 0.0
    last_changes: int = 0
    last_took_ms: float = 0.0
    failures: list[str] = field(default_factory=list)
    """Of the last round."""
    retries: int = 0
    """Rounds in a row that failed."""

    def add(self, changes: int, failures: list[str], took_s: float) -> None:
        """One more round."""
        self.rounds += 1
        self.changes += changes
        self.failed += len(failures)
        self.took_s += took_s
        self.last_changes, self.last_took_ms, self.failures = changes, took_s * 1e3, failures
        self.retries = self.retries + 1 if failures else 0
