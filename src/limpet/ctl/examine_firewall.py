"""Others' firewall chains on this machine that stop pods, or what nodes send each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from limpet.ctl.findings import Finding, error, ok, warn
from limpet.kernel.forward import (
    ForwardChain,
    HandleNftables,
    read_forward_chains,
    unreadable_legacy_tables,
)
from limpet.kernel.inbound import read_dropping_inbound
from limpet.model.errors import LimpetError


def examine_forward(bridge: str, *, allowed: bool, running: bool) -> Iterator[Finding]:
    """Another's FORWARD chain that drops stops pods, whatever our own table says."""
    try:
        nft = HandleNftables()
    except LimpetError:
        return  # a finding of the features
    try:
        chains = [chain for chain in read_forward_chains(nft) if chain.cause]
    finally:
        nft.close()
    for chain in chains:
        yield _forward_finding(chain, bridge, allowed=allowed, running=running)
    for command in unreadable_legacy_tables():
        yield warn(
            f"the kernel has {command} tables, but {command} is not installed",
            "a FORWARD chain there may drop what pods send, and nobody can see it",
            "install iptables, or find out what loaded those tables",
        )
    if not chains:
        yield ok("no FORWARD chain of others drops what it does not know")


def _forward_finding(chain: ForwardChain, bridge: str, *, allowed: bool, running: bool) -> Finding:
    if chain.accepts(bridge):
        return ok(f"{chain} drops ({chain.cause}), but for {bridge}: it has Limpet's accept rules")
    if allowed and not running:
        return ok(f"{chain} drops ({chain.cause}); accept rules for {bridge} will be kept in it")
    if allowed:
        return error(
            f"{chain} drops ({chain.cause}), and the accept rules for {bridge} are not in it",
            "pods may reach nothing beyond their node",
            "the agent puts them there: see `limpet status`, journalctl -u limpet-agent",
        )
    return error(
        f"{chain} drops ({chain.cause}) and has no accept rule of Limpet for {bridge}",
        "pods may reach nothing beyond their node, and on some nodes not even each other",
        "install with --allow-forward (allow_forward = true in the agent's configuration), "
        "which keeps one marked accept rule for each direction there",
    )


def examine_inbound(ports: Collection[int]) -> Iterator[Finding]:
    """Another's INPUT chain that drops may keep other nodes' packets to these UDP ports from us."""
    try:
        nft = HandleNftables()
    except LimpetError:
        return  # a finding of the features
    try:
        chains = read_dropping_inbound(nft)
    finally:
        nft.close()
    for chain in chains:
        closed = [str(port) for port in ports if not chain.may_admit(port)]
        if closed:
            yield warn(
                f"nftables chain {chain.name} drops ({chain.cause}), and no rule of it seems to "
                f"let UDP port {' and '.join(closed)} in",
                "other nodes may not reach this one, nor its pods",
                "accept it there from the other nodes, unless a rule does so in another way",
            )
