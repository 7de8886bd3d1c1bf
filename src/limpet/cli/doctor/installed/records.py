"""Segments of the node, and records of addresses that were given out before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from limpet.base.addresses import Prefix
from limpet.base.errors import LimpetError
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import Installation
from limpet.cli.output import counted
from limpet.ipam.ledger import read_ledger


def examine_segments(target: Installation) -> Iterator[Finding]:
    state = target.state
    if not state.segments and target.joined:
        return  # granted, or the agent says why not
    if not state.segments:
        yield error(
            "no-segment",
            "no address segment",
            "pods would get no addresses",
            "say --segment 10.244.7.0/24 (one for each node, and for each IP version), or "
            "--token and --controller for a node of a cluster, which grants them",
        )
        return
    yield ok(f"address segments: {_joined(state.segments)}")
    for segment in state.segments:
        cidrs = [cidr for cidr in state.cluster_cidrs if cidr.version == segment.version]
        if cidrs and not any(_within(segment, cidr) for cidr in cidrs):
            yield warn(
                "segment-outside",
                f"the segment {segment} is in none of the cluster CIDRs ({_joined(cidrs)})",
                "other nodes would take its pods for strangers",
                "check --segment and --cluster-cidr",
            )


def _joined(prefixes: Iterable[Prefix]) -> str:
    return ", ".join(map(str, prefixes))


def _within(inner: Prefix, outer: Prefix) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]


def examine_records(target: Installation) -> Iterator[Finding]:
    """Records of the network's name are taken over; others of the folder are named."""
    if target.installed:
        return
    folder = target.settings.folders.data_dir / target.network_name
    if folder.is_dir():
        yield _adoption(folder)
    else:
        yield from _other_records(target)


def _adoption(folder: Path) -> Finding:
    try:
        view = read_ledger(folder)
    except LimpetError as problem:
        return error(
            "records-unreadable",
            f"address records in {folder} cannot be read: {problem}",
            "pods would not keep their addresses",
            "mend the disk or move the folder away",
        )
    held = sum(record.holder is not None for record in view.records)
    kept = sum(record.key is not None for record in view.records)
    damaged = f", {counted(len(view.findings), 'file')} with problems" if view.findings else ""
    return ok(
        f"address records in {folder} are adopted: {held} held, {kept} kept for pods{damaged}"
    )


def _other_records(target: Installation) -> Iterator[Finding]:
    segments = target.state.segments
    for folder in sorted(_folders(target.settings.folders.data_dir)):
        try:
            addresses = [record.address for record in read_ledger(folder).records]
        except LimpetError:
            continue
        inside = [a for a in addresses if any(a in segment for segment in segments)]
        if inside:
            yield warn(
                "records-of-others",
                f"{folder} has records of {counted(len(inside), 'address')} of our segments",
                "its pods would get new addresses, and two pods could get one address",
                f"to take them over, install with --network-name {folder.name}",
            )


def _folders(data_dir: Path) -> list[Path]:
    try:
        return [path for path in data_dir.iterdir() if path.is_dir()]
    except OSError:
        return []
