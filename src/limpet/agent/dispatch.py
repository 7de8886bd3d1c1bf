"""From a call to a verb, and from whatever it raises to an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from limpet.agent.answers.verbs import Admin
from limpet.base.errors import CniCode, CniError, LimpetError
from limpet.base.settings import DnsSettings
from limpet.cni import frames as shim
from limpet.cni.check import check_attachment
from limpet.cni.protocol.request import parse_request, reply_version
from limpet.cni.protocol.result import encode_error, encode_result, version_reply
from limpet.cni.protocol.values import CniRequest, Dns, Verb
from limpet.cni.resolv_conf import own_dns
from limpet.cni.verbs import Node

_log = structlog.get_logger("cni")


class Dispatcher:
    """Answers every call; nothing that a call does can end the agent."""

    def __init__(self, node: Node, admin: Admin, dns: DnsSettings) -> None:
        """`dns`: where names are answered, for networks that say nothing of it."""
        self._node = node
        self._admin = admin
        self._dns = dns

    async def answer(
        self, call: shim.CniCall | shim.AdminCall, gone: Callable[[], bool]
    ) -> tuple[int, bytes]:
        """(exit code, body)."""
        if isinstance(call, shim.AdminCall):
            return await self._answer_admin(call)
        try:
            request = parse_request(call.environ, call.stdin)
            body = await self._serve(request, call.attempt, gone)
        except Exception as error:  # noqa: BLE001 - the runtime needs an answer in any case
            failure = cni_error(error)
            _log.warning(
                "request failed",
                verb=call.environ.get("CNI_COMMAND", ""),
                container=call.environ.get("CNI_CONTAINERID", ""),
                code=int(failure.code),
                error=str(failure),
                exc_info=failure.code is CniCode.INTERNAL,
            )
            return 1, encode_error(failure, reply_version(call.stdin))
        return 0, body

    async def _serve(self, request: CniRequest, attempt: int, gone: Callable[[], bool]) -> bytes:
        node = self._node
        match request.verb:
            case Verb.ADD:
                if gone():
                    # The runtime killed the shim; its DEL is on its way or was served already.
                    raise CniError(CniCode.TRY_AGAIN_LATER, "nobody waits for this ADD any more")
                result = await node.add(request, attempt=attempt)
                if result.dns == Dns():
                    result = replace(result, dns=own_dns(self._dns, request, result.addresses))
                return encode_result(result, request.conf.cni_version)
            case Verb.DEL:
                await node.delete(request)
            case Verb.CHECK:
                attachment = node.require_attachment(request)
                check_attachment(
                    node.kernel,
                    node.node_part.guards.ports,
                    attachment,
                    request.netns,
                    request.prev_result,
                )
            case Verb.GC:
                await node.collect(request)
            case Verb.STATUS:
                reasons = await node.reasons_not_ready(request.conf)
                if reasons:
                    raise CniError(
                        CniCode.NOT_AVAILABLE,
                        f"network {request.conf.name} cannot take pods: {reasons[0]}",
                        "limpet doctor tells more",
                    )
            case Verb.VERSION:
                return version_reply(request.conf.cni_version)
        return b""

    async def _answer_admin(self, call: shim.AdminCall) -> tuple[int, bytes]:
        try:
            said = await self._admin.answer(call.verb, dict(call.args))
        except LimpetError as error:
            return 1, json.dumps({"error": str(error)}).encode()
        except Exception as error:  # noqa: BLE001 - a person needs an answer in any case
            _log.error("admin request failed", verb=call.verb, exc_info=True)
            return 1, json.dumps(
                {"error": f"{call.verb}: {error!r} (see the agent's log)"}
            ).encode()
        return 0, msgspec.json.encode(said)


def cni_error(error: Exception) -> CniError:
    """What a runtime is told."""
    if isinstance(error, CniError):
        return error
    if isinstance(error, LimpetError) and error.code is not None:
        return CniError(error.code, str(error))
    return CniError(
        CniCode.INTERNAL, f"internal error: {error!r}", "the agent's log has the traceback"
    )
