"""Processes, agents and commands of other versions, as they meet during an upgrade."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet.dns.handover.ready import main as ready
from limpet.services.kept_here import HERE_FILE, encode_here
from limpet.services.rotation import Here
from tests.beds.namespaces import NetnsFactory
from tests.dns.test_process import ITEMS, WEB, Place, ask, values
from tests.waiting import PATIENCE_S, wait_until

LATER = "it is of version 2, this Limpet knows 1"


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    made = make_place()
    made.keep(*ITEMS)
    made.start()
    return made


def say(place: Place, words: bytes) -> tuple[bytes, list[int], socket.socket]:
    """What `dns.sock` answers, with its descriptors, and the connection."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asking.settimeout(PATIENCE_S)
    asking.connect(str(place.run_dir / "dns.sock"))
    asking.sendall(words)
    said, fds, _, _ = socket.recv_fds(asking, 1 << 16, 32)
    return said, fds, asking
