"""Whether a client is on this node is found out once, and anew when routes may be others."""

from __future__ import annotations

from errno import EMFILE

from limpet.base.errors import KernelError
from limpet.dns.clients.far import FarClients


def test_each_client_is_looked_for_once_until_all_are_forgotten() -> None:
    looked: list[str] = []

    def is_beyond(address: str) -> bool:
        looked.append(address)
        return address == "192.0.2.9"

    far = FarClients(is_beyond)

    assert [far.has("192.0.2.9"), far.has("10.244.7.2"), far.has("192.0.2.9")] == [
        True,
        False,
        True,
    ]
    assert looked == ["192.0.2.9", "10.244.7.2"]
    far.forget()
    assert far.has("192.0.2.9")
    assert looked[2:] == ["192.0.2.9"]


def test_who_cannot_be_looked_for_is_answered_and_looked_for_again() -> None:
    fails = True

    def is_beyond(address: str) -> bool:
        if fails:
            raise KernelError("open", "a netlink socket", EMFILE)
        return True

    far = FarClients(is_beyond)

    assert not far.has("192.0.2.9")
    fails = False
    assert far.has("192.0.2.9")
