"""What this node's own part of the kernel should be, beside what it is, while no agent runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

from limpet.base.node_state import NodeState
from limpet.cli.doctor.findings import Finding, error
from limpet.datapath.change import Drop, Put
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.diff import Change, MissingPort, PutRuleset, PutSysctl, diff_node
from limpet.datapath.node.plan import plan_node
from limpet.datapath.node.pod.attachment import Attachment

_MOST_NAMED = 4


def pending_changes(bridge: str, state: NodeState, pods: Iterable[Attachment]) -> list[Change]:
    """What the agent's next round would do for `pods`; nothing where there is no bridge of ours.

    Raises: LimpetError.
    """
    attached = list(pods)
    with closing(NodeKernel()) as kernel:
        facts = kernel.facts([bridge])
        if not attached and bridge not in facts.own_bridges:
            return []
        facts = replace(facts, own_bridge_exists=bridge in facts.own_bridges or bool(attached))
        want = plan_node(bridge, state, attached, facts=facts)
        changes = diff_node(want, kernel.observe(want))
    if any(pod.port_mappings for pod in attached):
        # Which ports no hostPort takes is told by the cluster, and the table goes by it.
        changes = [each for each in changes if not isinstance(each, PutRuleset)]
    return changes


def examine_planned(bridge: str, state: NodeState, pods: Iterable[Attachment]) -> Iterator[Finding]:
    """For a node whose agent does not answer: nobody mends what is not as planned."""
    changes = pending_changes(bridge, state, pods)
    if changes:
        named = "; ".join(map(words_of, changes[:_MOST_NAMED]))
        more = f"; and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
        yield error(
            "not-as-planned",
            f"the node is not as planned: {named}{more}",
            "pods that run may not reach others, and no agent is there to mend it",
            "start the agent, which puts it right",
        )


def words_of(change: Change) -> str:
    """One change, for a person. Pure."""
    match change:
        case PutSysctl(path, value):
            return f"sysctl {path.replace('/', '.')} should be {value}"
        case PutRuleset():
            return "the nftables table is another"
        case MissingPort(ifname):
            return f"the pod's link {ifname} is gone"
        case Put(what):
            return f"{_named(what)} is missing or another"
        case Drop(what):
            return f"{_named(what)} is too much"


def _named(what: object) -> str:
    told = (getattr(what, each, None) for each in ("ifname", "prefix", "address"))
    return " ".join([type(what).__name__.lower(), *(str(each) for each in told if each)])
