"""An agent whose record of the kernel's settings before it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SEGMENTS, NodeFactory


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"version": 2, "sysctls": {}}'])
def test_pods_are_reached_all_the_same_and_the_record_is_left_as_it_is(
    make_node: NodeFactory, damaged: bytes
) -> None:
    node = make_node(segments=SEGMENTS)
    record = Path(node.settings["state_dir"]) / "sysctls.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(damaged)
    node.start_agent()
    one, other = node.pod("one"), node.pod("other")
    one.add()
    other.add()
    assert one.reaches(other.addresses[0].ip)
    assert node.run("cat", "/proc/sys/net/ipv4/ip_forward").strip() == "1"
    assert record.read_bytes() == damaged
