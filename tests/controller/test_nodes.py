"""Nodes and the network as a person changes them, and as nodes hear of it."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.cluster.kinds import GRANT, NETWORK
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import Encryption, Network, TunnelBackend
from tests.controller.machines import (
    Controller,
    Node,
    join_all,
    of_kind,
    until_bookmark,
)

COLLIDING = (ip_address("203.0.113.7"), 51820)


async def run(controller: Controller, *words: str) -> str:
    """What a command prints that works."""
    done = await asyncio.to_thread(controller.command, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def ask(controller: Controller, verb: str, **arguments: Any) -> dict[str, Any]:
    """What a command asks. Raises: LimpetError."""
    return await asyncio.to_thread(partial(controller.ask, verb, **arguments))


async def document(controller: Controller, *words: str) -> Any:
    return json.loads(await run(controller, *words, "--output", "json"))


async def hear_network(node: Node) -> Network:
    async with node.watch() as lines:
        told = await until_bookmark(lines)
    sealed = [sealed for line in told if (sealed := of_kind(line, NETWORK)) is not None][-1]
    return node.network(sealed)


def test_roles_and_prefixes_behind_are_set_in_one_signed_grant_that_all_hear_of(
    controller: Controller,
) -> None:
    async def body() -> None:
        hub, watcher = await join_all(controller, "hub", "watcher")
        async with hub, watcher, watcher.watch() as lines:
            await until_bookmark(lines)
            await hub.publish(addresses=(ip_address("203.0.113.10"),), tunnel_port=51820)
            await until_bookmark(lines)

            said = await run(
                controller,
                *("node", "set", "hub", "--role", "cloud", "--role", "relay"),
                *("--behind", "10.1.0.0/16", "--behind", "2001:db8:1::/48"),
            )

            assert said == "roles: cloud, relay\nbehind: 10.1.0.0/16, 2001:db8:1::/48\n"
            (line,) = [each for each in await until_bookmark(lines) if of_kind(each, GRANT)]
            assert line.document is not None
            grant = watcher.open(line.document)
            assert grant.generation == 2
            assert grant.roles == {Role.CLOUD, Role.RELAY}
            assert grant.prefixes_behind == (
                ip_network("10.1.0.0/16"),
                ip_network("2001:db8:1::/48"),
            )
            for prefix, why in (
                ("10.1.7.0/24", "put 10.1.7.0/24 behind watcher: it overlaps 10.1.0.0/16"),
                ("10.2.3.4/16", "10.2.3.4/16 has host bits set"),
            ):
                with pytest.raises(LimpetError, match=re.escape(why)):
                    await ask(controller, "node.set", node="watcher", behind=[prefix])
            answer = await document(
                controller, "node", "set", "hub", "--remove-behind", "2001:db8:1::/48"
            )
            assert answer["prefixes_behind"] == ["10.1.0.0/16"]
            assert answer["generation"] == 3

    asyncio.run(body())


def test_a_relay_by_its_token_that_turns_out_to_have_no_public_address_is_told_of(
    controller: Controller,
) -> None:
    async def body() -> None:
        async with Node(controller.url, "second") as node:
            await node.join(await asyncio.to_thread(controller.token, roles=["cloud", "relay"]))
            assert node.grant.roles == {Role.CLOUD, Role.RELAY}
            assert await node.publish(addresses=(ip_address("192.168.1.5"),)) == 1
        shown = await asyncio.to_thread(controller.command, "node", "show", "second")
        assert shown.returncode == 0
        assert "second: a relay without a public address" in shown.stderr
        assert "a relay without a public address" in controller.log.read_text()

    asyncio.run(body())


def test_nodes_with_one_endpoint_go_on_and_a_person_is_told(controller: Controller) -> None:
    async def body() -> None:
        one, other = await join_all(controller, "one", "other")
        async with one, other:
            await one.publish(endpoints=(COLLIDING,))
            assert "also that of" not in controller.log.read_text()
            assert await other.publish(endpoints=(COLLIDING,)) == 1
            assert await other.publish(endpoints=(COLLIDING,), port=7471) == 2
        assert controller.log.read_text().count("also that of one") == 1
        listed = await asyncio.to_thread(controller.command, "node", "list")
        assert listed.returncode == 0
        words = listed.stderr.splitlines()
        assert [line.split(" ")[0] for line in words] == ["one", "other"]
        assert "the endpoint [203.0.113.7]:51820 is also that of other" in words[0]
        (problem,) = (await document(controller, "node", "show", "other"))["problems"]
        assert "is also that of one" in problem

    asyncio.run(body())


def test_encryption_and_tunnel_backends_are_in_the_signed_network_and_outlive_a_restart(
    controller: Controller,
) -> None:
    async def body() -> None:
        (node,) = await join_all(controller, "crane")
        async with node:
            network = await hear_network(node)
            assert network.encryption is Encryption.BETWEEN_SITES
            assert network.tunnel_backend is TunnelBackend.WIREGUARD
            said = await run(
                controller,
                *("network", "set", "--encryption", "all", "--tunnel-backend", "ipsec"),
            )
            assert said == "encryption: all\ntunnel backend: ipsec\n"
            made = await document(
                controller, "community", "create", "harbour", "--tunnel-backend", "wireguard"
            )
            assert made["tunnel_backend"] == "wireguard"

            assert await asyncio.to_thread(controller.stop) == 0
            await asyncio.to_thread(controller.start)

            network = await hear_network(node)
            assert network.encryption is Encryption.ALL
            assert network.tunnel_backend is TunnelBackend.IPSEC
            assert network.community_backends == {"harbour": TunnelBackend.WIREGUARD}
            shown = await ask(controller, "network.show")
            assert shown["community_backends"] == {"harbour": "wireguard"}
            harbour = {"community": "harbour"}
            await ask(controller, "community.take-out", **harbour, tunnel_backend=True)
            assert (await hear_network(node)).community_backends == {}
            await ask(controller, "community.add", **harbour, tunnel_backend="ipsec")
            await ask(controller, "community.dissolve", **harbour)
            assert (await hear_network(node)).community_backends == {}

    asyncio.run(body())
