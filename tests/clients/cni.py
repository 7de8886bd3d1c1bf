"""Plugins called as libcni calls them: environment, stdin, prevResult from one to the next."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clients.machine import Machine
from tests.clients.networks import BIN_DIR

Result = dict[str, Any]


class CniFailure(AssertionError):
    """A plugin ended with an error object; `code` is -1 where it printed something else."""

    def __init__(self, verb: str, plugin: str, exit_code: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{verb} of {plugin}: exit {exit_code}: {stdout}{stderr}")
        try:
            self.code = int(json.loads(stdout)["code"])
        except (ValueError, KeyError, TypeError):
            self.code = -1


@dataclass
class Attachment:
    """One container on one network; the result of its ADD, as a runtime's cache would keep it."""

    netns: str
    """Path of its network namespace in the machine."""
    pod: str = ""
    """Its pod's name; empty: no pod."""
    ifname: str = "eth0"
    container_id: str = field(default_factory=lambda: secrets.token_hex(32))
    runtime_config: Mapping[str, Any] = field(default_factory=dict)
    """Given to the plugins that declare the capability."""
    result: Result | None = None

    def addresses(self) -> list[str]:
        """Addresses of the result with their lengths, in its order."""
        assert self.result is not None
        return [entry["address"] for entry in self.result["ips"]]


class Chain:
    """A conflist and the plugins that it names."""

    def __init__(
        self, machine: Machine, conflist: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.machine = machine
        self.conflist = conflist
        self.environment = environment

    def add(self, attachment: Attachment) -> Result:
        """ADD of every plugin in order. Raises: CniFailure of the first that fails."""
        result = None
        for plugin in self.conflist["plugins"]:
            result = self._call("ADD", plugin, attachment, result)
        assert result is not None
        attachment.result = result
        return result

    def check(self, attachment: Attachment) -> None:
        """CHECK of every plugin in order, each with the final result. Raises: CniFailure."""
        for plugin in self.conflist["plugins"]:
            self._call("CHECK", plugin, attachment, attachment.result)

    def delete(self, attachment: Attachment, *, forgotten: bool = False) -> None:
        """DEL of every plugin in reverse. `forgotten`: namespace and result are gone already."""
        for plugin in reversed(self.conflist["plugins"]):
            result = None if forgotten else attachment.result
            self._call("DEL", plugin, attachment, result, netns="" if forgotten else None)

    def _call(
        self,
        verb: str,
        plugin: Mapping[str, Any],
        attachment: Attachment,
        prev_result: Result | None,
        *,
        netns: str | None = None,
    ) -> Result | None:
        conf = {name: value for name, value in plugin.items() if name != "capabilities"}
        conf |= {key: self.conflist[key] for key in ("cniVersion", "name")}
        declared = plugin.get("capabilities", {})
        runtime_config = {
            name: value
            for name, value in attachment.runtime_config.items()
            if declared.get(name, False)
        }
        if runtime_config:
            conf["runtimeConfig"] = runtime_config
        if prev_result is not None:
            conf["prevResult"] = prev_result
        args = {"IgnoreUnknown": "1"}
        if attachment.pod:
            args |= {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": attachment.pod}
            args |= {"K8S_POD_INFRA_CONTAINER_ID": attachment.container_id}
        done = self.machine.try_run(
            f"{BIN_DIR}/{plugin['type']}",
            env={
                **self.environment,
                "CNI_COMMAND": verb,
                "CNI_CONTAINERID": attachment.container_id,
                "CNI_NETNS": attachment.netns if netns is None else netns,
                "CNI_IFNAME": attachment.ifname,
                "CNI_PATH": BIN_DIR,
                "CNI_ARGS": ";".join(f"{name}={value}" for name, value in args.items()),
            },
            stdin=json.dumps(conf),
        )
        if done.returncode != 0:
            raise CniFailure(verb, plugin["type"], done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout) if verb == "ADD" else None
