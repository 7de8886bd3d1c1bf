"""What runs in a world right now: asked from the kernel and the agents, not remembered."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from limpet.base.errors import LimpetError
from limpet.lab.command import LabError, side_by_side
from limpet.lab.measure.matrix import Matrix
from limpet.lab.measure.paths import seen_paths
from limpet.lab.measure.picture import draw
from limpet.lab.measure.shown import (
    ControllerRunning,
    NodeRunning,
    PodRunning,
    Reach,
    SiteShown,
    Unanswered,
    WorldShown,
)
from limpet.lab.world.gateway import Gateway
from limpet.lab.world.machine import Machine
from limpet.lab.world.wires import existing_namespaces
from limpet.lab.world.world import World


def describe(world: World) -> WorldShown:
    """Never raises for what is gone: it says so."""
    there = frozenset(existing_namespaces(world.name))
    controller = world.controller
    return WorldShown(
        world=world.name,
        topology=world.topology.name,
        folder=str(world.folder),
        cut_off=_cuts(world),
        controller=ControllerRunning(
            pid=controller.process.pid,
            endpoints=controller.endpoints,
            config=str(controller.config_path),
        ),
        sites=[_site(gateway) for gateway in world.gateways.values()],
        nodes=side_by_side(lambda machine: _node(machine, there), world.machines.values()),
        paths=seen_paths(world),
        pods=[
            PodRunning(
                pod=pod.name,
                node=machine.label,
                addresses=[str(each.ip) for each in pod.addresses],
                there=pod.netns in there,
            )
            for machine in world.machines.values()
            for pod in machine.pods.values()
        ],
    )


def reached(matrix: Matrix) -> Reach:
    """Who reached whom, of pings between all."""
    return Reach(
        pings=matrix.count,
        unanswered=[
            Unanswered(source=source, target=target, address=address)
            for source, target, address in matrix.failures
        ],
    )


def picture(world: World) -> str:
    """SVG: who is on which rung to whom."""
    now = tuple(
        structs.replace(gateway.site, udp="blocked" if gateway.udp_blocked else "open")
        for gateway in world.gateways.values()
    )
    return draw(replace(world.topology, sites=now), seen_paths(world))


def _site(gateway: Gateway) -> SiteShown:
    site = gateway.site
    return SiteShown(
        site=site.name,
        lan=[str(prefix) for prefix in site.lan],
        nat=str(site.nat),
        public_address=str(gateway.public) if gateway.translates else "",
        udp_blocked=gateway.udp_blocked,
    )


def _cuts(world: World) -> list[str]:
    try:
        return world.wires.cuts()
    except LabError:
        return []  # the backbone is gone; whoever looks at the nodes sees it


def _node(machine: Machine, there: frozenset[str]) -> NodeRunning:
    state, segments = _agent(machine, there)
    return NodeRunning(
        node=machine.label,
        site=machine.site.name,
        addresses=[str(each.ip) for each in machine.addresses],
        agent=state,
        pid=machine.agent.pid,
        segments=segments,
        pods=len(machine.pods),
        clock=machine.clock,
        disk_full=machine.disk_is_full,
        config=str(machine.config_path),
    )


def _agent(machine: Machine, there: frozenset[str]) -> tuple[str, list[str]]:
    if machine.name not in there:
        return "node is gone", []
    if machine.agent.pid is None:
        return "does not run", []
    try:
        status = machine.ask("status")
    except LimpetError as error:
        return f"does not answer: {error}", []
    state = "ready" if status["ready"] else f"not ready: {'; '.join(status['reasons'])}"
    return state, [each["prefix"] for each in status["segments"]]
