"""What an API server counts of its requests and watches, as it tells at /metrics."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from limpet.lab.kube.control_plane import ControlPlane

_LINE = re.compile(r"^(apiserver_\w+)\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_REQUESTS = "apiserver_request_total"
_EVENT_BYTES = "apiserver_watch_events_sizes_sum"
_WATCHES = "apiserver_longrunning_requests"


@dataclass(frozen=True, slots=True)
class Load:
    """Since the API server began, or between two readings; by resource."""

    requests: Counter[str]
    """But for watches."""
    event_bytes: Counter[str]
    """Told to all watches together."""
    watches: Counter[str]
    """Under way now; of a difference, how many more."""

    def __sub__(self, earlier: Load) -> Load:
        return Load(
            *(
                Counter({name: now[name] - then[name] for name in now})
                for now, then in (
                    (self.requests, earlier.requests),
                    (self.event_bytes, earlier.event_bytes),
                    (self.watches, earlier.watches),
                )
            )
        )

    def requests_of(self, *resources: str) -> int:
        return sum(self.requests[name] for name in resources)


def read_load(plane: ControlPlane) -> Load:
    """Raises: LabError."""
    requests: Counter[str] = Counter()
    event_bytes: Counter[str] = Counter()
    watches: Counter[str] = Counter()
    for name, text, value in _LINE.findall(plane.kubectl("get", "--raw", "/metrics")):
        labels = dict(_LABEL.findall(text))
        resource = labels.get("resource", "")
        if name == _REQUESTS and labels["verb"] != "WATCH":
            requests[resource] += int(float(value))
        elif name == _EVENT_BYTES:
            event_bytes[resource] += int(float(value))
        elif name == _WATCHES and labels["verb"] == "WATCH":
            watches[resource] += int(float(value))
    return Load(requests, event_bytes, watches)
