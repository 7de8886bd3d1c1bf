"""Programs that an agent of this node has attached, wherever they are pinned: a pod sees the node's
bpffs only where its manifest mounts it, and they outlive the agent that did."""

from __future__ import annotations

import time
from collections.abc import Collection

from limpet.base.errors import KernelError
from limpet.datapath.services.sockets.layout import NAMESPACES, NODE, namespace
from limpet.datapath.services.sockets.pins_apply import SENDING_PROGRAMS, UNDER_WAY_S
from limpet.linux.bpf.attached import AttachedProgram, attached_programs, detach, value_in
from limpet.linux.bpf.place import network_cookie

_NAMES = "limpet_"


def detach_programs(unless: Collection[int] = ()) -> bool:
    """Nothing is translated by any of them from then on; whether there were any. It takes 0.2 s if
    so, for answers that are under way. `unless`: ids of links that stay. Raises: KernelError."""
    found = [each for each in _own_programs() if each.link_id not in unless]
    sending = [each for each in found if each.name in SENDING_PROGRAMS]
    for each in sending:
        detach(each.link_id)
    if sending:
        time.sleep(UNDER_WAY_S)
    for each in found:
        detach(each.link_id)
    return bool(found)


def _own_programs() -> list[AttachedProgram]:
    """Those for which the calling thread's network namespace is the node's own.

    A machine may have many Limpets, which share cgroups and are told apart by nothing else. What
    looks up no namespace has other maps in common with what does.
    """
    programs = [each for each in attached_programs() if each.name.startswith(_NAMES)]
    if not programs:
        return []
    try:
        own = namespace(network_cookie())
    except KernelError:  # no program could be told of a namespace either
        return []
    with_node = {
        number
        for number in {each for program in programs for each in program.map_ids}
        if value_in(number, NAMESPACES, own, len(NODE)) == NODE
    }
    shared = {
        number
        for program in programs
        if not with_node.isdisjoint(program.map_ids)
        for number in program.map_ids
    }
    return [each for each in programs if not shared.isdisjoint(each.map_ids)]
