"""The rung of every node of a world to every other one, as their agents say."""

from __future__ import annotations

from msgspec import Struct

from limpet.base.errors import LimpetError
from limpet.lab.command import side_by_side
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World


class SeenPath(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """What a node of a world says of its way to another one; both by name."""

    source: str
    target: str
    rung: str
    """Empty: it has no way."""
    endpoint: str
    """`address:port` that the tunnel's packets are sent to."""
    relay: str
    """Name of the relay."""
    why: str
    """Why it has no way."""


def seen_paths(world: World) -> list[SeenPath]:
    """Path of every node to every other one that it may talk to, in the topology's order.

    Never raises for an agent that does not answer: its paths say so.
    """
    answers = side_by_side(lambda machine: _answers(world, machine), world.machines.values())
    return [path for paths in answers for path in paths]


def _answers(world: World, machine: Machine) -> list[SeenPath]:
    others = [label for label in world.machines if label != machine.label]
    known = ("rung", "endpoint", "relay", "why")
    try:
        peers = {each["name"]: each for each in machine.ask("peers")["peers"]}
        unknown = {"why": "it does not know it yet"}
    except LimpetError:
        peers, unknown = {}, {"why": "its agent does not answer"}
    seen = {label: peers.get(label, unknown) for label in others}
    return [
        SeenPath(machine.label, label, **{key: peer.get(key) or "" for key in known})
        for label, peer in seen.items()
        if peer.get("state") != "apart"
    ]
