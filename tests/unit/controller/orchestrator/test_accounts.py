"""What a TokenReview says of a pod's token, and where agents are told that the controller is."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest

from limpet.base.addresses import UnderlayLink
from limpet.cluster.api import ACCOUNT_AUDIENCE, JoinRequest
from limpet.controller.orchestrator.account import AgentPod, question_about, read_review
from limpet.controller.orchestrator.reached_at import NODE_ADDRESSES, next_status, own_addresses
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.settings import parse_settings
from limpet.kubernetes.kinds.objects import Reviewed, TokenReview, TokenReviewStatus

TOKEN = "a.b.c"
ACCOUNT = "system:serviceaccount:limpet-system:limpet-agent"
EXTRA = {
    "authentication.kubernetes.io/node-name": ["crane-1"],
    "authentication.kubernetes.io/pod-name": ["limpet-agent-x"],
    "authentication.kubernetes.io/pod-uid": ["u"],
}


def wish(name: str = "crane-1", token: str = TOKEN) -> JoinRequest:
    return JoinRequest(token, name, b"", b"")


def review(
    *,
    authenticated: bool = True,
    audiences: list[str] | None = None,
    username: str = ACCOUNT,
    extra: dict[str, list[str]] | None = None,
) -> TokenReview:
    return TokenReview(
        status=TokenReviewStatus(
            authenticated=authenticated,
            audiences=[ACCOUNT_AUDIENCE] if audiences is None else audiences,
            user=Reviewed(username=username, extra=EXTRA if extra is None else extra),
        )
    )


def without(part: str) -> dict[str, list[str]]:
    return {key: value for key, value in EXTRA.items() if not key.endswith(part)}


def test_the_agents_pod_of_the_node_is_let_through() -> None:
    found = read_review(review(), wish(), "limpet-system")

    assert found == AgentPod("crane-1", "limpet-agent-x", "u")
    assert question_about(wish()).spec.audiences == [ACCOUNT_AUDIENCE]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (review(authenticated=False), "does not take"),
        # An API server that knows no audiences says yes to any token.
        (review(audiences=[]), "is not for"),
        (review(username=ACCOUNT.replace("agent", "controller")), "agents are"),
        (review(username=ACCOUNT.replace("limpet-system", "default")), "agents are"),
        (review(username="limpet-agent"), "agents are"),
        (review(extra={}), "names no pod"),
        (review(extra=without("node-name")), "names no pod"),
        (review(extra=without("pod-name")), "names no pod"),
        (review(extra=without("pod-uid")), "names no pod"),
        (review(extra={**EXTRA, "authentication.kubernetes.io/node-name": []}), "names no pod"),
    ],
)
def test_everybody_else_is_refused_in_words(found: TokenReview, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        read_review(found, wish(), "limpet-system")


def test_a_token_speaks_for_its_own_node_alone() -> None:
    with pytest.raises(RefusedError, match="on node crane-1, which speaks for that node only"):
        read_review(review(), wish("crane-2"), "limpet-system")


@pytest.mark.parametrize(
    "token", ["", "lmp1_a_b_c", "a.b", "a.b.c.d", "ä.b.c", "a." * 20_000 + "c"]
)
def test_what_is_no_token_is_not_asked_about(token: str) -> None:
    with pytest.raises(RefusedError, match="is no token of a pod's service account"):
        question_about(wish(token=token))


# Where it is reached


LINK = UnderlayLink(
    "eth0",
    2,
    "02:00:00:00:00:01",
    1500,
    tuple(map(ip_interface, ("192.0.2.7/24", "fe80::7/64", "2001:db8::7/64", "10.244.3.1/24"))),
)


@pytest.mark.parametrize(
    ("keys", "node", "told"),
    [
        ({}, "", ["192.0.2.7:7470", "[2001:db8::7]:7470"]),
        ({}, "192.0.2.9,2001:db8::9", ["192.0.2.9:7470", "[2001:db8::9]:7470"]),
        ({"listen": "0.0.0.0:7000"}, "192.0.2.9,2001:db8::9", ["192.0.2.9:7000"]),
        ({"listen": ["127.0.0.1:1", "[::1]:2"]}, "192.0.2.9", ["127.0.0.1:1", "[::1]:2"]),
        ({"advertise": ["edge.example:7470"]}, "192.0.2.9", ["edge.example:7470"]),
    ],
)
def test_agents_are_told_what_leads_to_the_controller(
    keys: dict[str, object], node: str, told: list[str]
) -> None:
    """Not addresses of the link alone, nor those that nodes take for pods'."""
    settings = parse_settings(keys, "the test")

    assert own_addresses(settings, [LINK], {NODE_ADDRESSES: node}) == told


def test_who_led_before_is_asked_last_unless_all_are_named() -> None:
    before = {"addresses": ["b:1", "a:1", 7], "caCertificate": "old"}

    status = next_status(["a:1"], "ca", before, are_all=False)
    assert status == {"addresses": ["a:1", "b:1"], "caCertificate": "ca"}
    assert next_status(["a:1"], "ca", before, are_all=True)["addresses"] == ["a:1"]
    for nonsense in (None, 7, {}, {"addresses": "x"}):
        assert next_status(["a:1"], "ca", nonsense, are_all=False)["addresses"] == ["a:1"]
    many = {"addresses": [f"{n}:1" for n in range(20)]}
    assert len(next_status(["a:1"], "ca", many, are_all=False)["addresses"]) == 8
