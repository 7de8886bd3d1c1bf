"""What this node's own part of the kernel should be, beside what it is, while no agent runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

from limpet.agent.settings import Settings
from limpet.base.node_state import NodeState, PortRange
from limpet.base.text.few import few
from limpet.cli.doctor.findings import Finding, error
from limpet.datapath.change import Drop, Put
from limpet.datapath.node.apply import NodeKernel
from limpet.datapath.node.basis import BASIS_FILE, PlanBasis, read_basis
from limpet.datapath.node.diff import Change, MissingPort, PutRuleset, PutSysctl, diff_node
from limpet.datapath.node.plan import bridges_of, plan_by
from limpet.datapath.node.pod.attachment import Attachment

_MOST_NAMED = 4


def own_ports(settings: Settings) -> frozenset[PortRange]:
    """Ports of this node that no hostPort takes, beside those that every node has: as the agent
    goes by them, whatever its settings say by now."""
    kept = read_basis(settings.folders.run_dir / BASIS_FILE)
    return frozenset() if kept is None else kept.state.own_ports


def pending_changes(
    settings: Settings, state: NodeState, pods: Iterable[Attachment]
) -> list[Change]:
    """What the agent's next round would do for `pods`; nothing where there is no bridge of ours.

    `state`: counts where no agent has kept what it plans by. Raises: LimpetError.
    """
    bridge, attached = settings.pods.bridge, list(pods)
    kept = read_basis(settings.folders.run_dir / BASIS_FILE)
    basis = kept or PlanBasis(replace(state, in_cluster=False))
    with closing(NodeKernel()) as kernel:
        facts = kernel.facts(bridges_of(bridge, basis, attached))
        if kept is None and not attached and bridge not in facts.own_bridges:
            return []
        want = plan_by(bridge, basis, attached, facts)
        changes = diff_node(want, kernel.observe(want))
    if kept is None:
        # The agent may know of more: of what it wants besides nothing can be said.
        changes = [each for each in changes if not isinstance(each, PutRuleset | Drop)]
    return changes


def examine_planned(
    settings: Settings, state: NodeState, pods: Iterable[Attachment]
) -> Iterator[Finding]:
    """For a node whose agent does not answer: nobody mends what is not as planned."""
    changes = pending_changes(settings, state, pods)
    if changes:
        named = few(changes, _MOST_NAMED, "; ", "; and ", say=words_of)
        yield error(
            "not-as-planned",
            f"the node is not as planned: {named}",
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
