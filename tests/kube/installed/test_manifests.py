"""deploy/limpet.yaml on a real API server: it is taken whole, and thieves get nowhere with it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from limpet.lab.command import LabError
from limpet.lab.kube.control_plane import ControlPlane
from tests.kube.definitions import wait_until_served
from tests.waiting import wait_until

MANIFEST = Path(__file__).resolve().parents[3] / "deploy" / "limpet.yaml"
SPACE = "limpet-system"
UIDS = {"node-a": "a" * 24, "node-b": "b" * 24}
OURS = ("clusternetworks", "nodegrants", "nodepresences", "communities")
AS_AGENT = f"--as=system:serviceaccount:{SPACE}:limpet-agent"
AS_CONTROLLER = f"--as=system:serviceaccount:{SPACE}:limpet-controller"
AS_WRITER = ("--as=somebody", "--as-group=writers")
"""Whom RBAC lets write our resources, verb by verb: only the policies stand against that."""
RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class User:
    """kubectl as somebody."""

    api: ControlPlane
    words: tuple[str, ...] = ()

    def run(self, *words: str, about: Any = None) -> str:
        """`about`: an object, for a command that reads one."""
        if about is None:
            return self.api.kubectl(*words, *self.words)
        # The API server says what is valid; kubectl would ask it for all schemas.
        more = ("--validate=false", "-f", "-", *self.words)
        return self.api.kubectl(*words, *more, stdin=json.dumps(about))

    def refusal(self, *words: str, about: Any = None) -> str:
        """What the API server says against it; empty: nothing, it was done."""
        try:
            self.run(*words, about=about)
        except LabError as error:
            return str(error)
        return ""

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("get", kind, name, "-o", "json"))
        return found


def custom(kind: str, name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Signed by nobody: that is for agents and controllers to judge."""
    return {
        "apiVersion": "limpet.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
        "document": {"body": "e30K", "signature": "A" * 86 + "=="},
        **more,
    }


def presence(node: str, *, name: str = "", uid: str = "", **more: Any) -> dict[str, Any]:
    spec = {"node": node, "uid": uid or UIDS[node], "sequence": 1}
    return custom("NodePresence", name or node, spec, **more)


def grant(node: str) -> dict[str, Any]:
    told = {"publicKey": "A" * 43 + "=", "generation": 1, "revision": 1}
    return custom("NodeGrant", node, {"node": node, "uid": UIDS[node], **told})


def pod(name: str, node: str, account: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "one", "image": "none"}],
        },
    }


@pytest.fixture(scope="module")
def admin(api: ControlPlane) -> User:
    """Limpet is applied; two nodes and their pods are there, of agents and of another account."""
    admin = User(api)
    api.kubectl("apply", "-f", str(MANIFEST))
    names = (f"{kind}.limpet.dev" for kind in OURS)
    wait_until_served(api, *names)
    api.kubectl("create", "serviceaccount", "bystander", "-n", SPACE)
    for node in UIDS:
        admin.run("create", about={"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        for account in ("limpet-agent", "bystander"):
            admin.run("create", about=pod(f"{account}-{node}", node, account))
    verbs = "--verb=get,list,create,update,patch,delete"
    api.kubectl(
        "create", "clusterrole", "writers", verbs,
        f"--resource={','.join(f'{kind}.limpet.dev' for kind in OURS)}",
    )  # fmt: skip
    api.kubectl(
        "create", "clusterrolebinding", "writers", "--clusterrole=writers", "--group=writers"
    )
    # A policy takes effect a moment after it was written.
    for each in (presence("node-a"), grant("node-a")):
        wait_until(partial(_policy_refuses, api, each), f"{each['kind']} has its policy")
    return admin


def _policy_refuses(api: ControlPlane, document: dict[str, Any]) -> bool:
    writer = User(api, (*AS_WRITER, "--dry-run=server"))
    return "ValidatingAdmissionPolicy" in writer.refusal("create", about=document)


def bound_token(admin: User, node: str, *more: str, account: str = "limpet-agent") -> str:
    """As the kubelet of the node puts it into the pod."""
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={account}-{node}")
    return admin.run("create", "token", account, "-n", SPACE, *bound, *more).strip()


def holder(admin: User, token: str, folder: Path) -> User:
    """Who has that token and nothing else."""
    config = yaml.safe_load(admin.api.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return User(admin.api, (f"--kubeconfig={path}",))


@pytest.fixture
def agent_a(admin: User, tmp_path: Path) -> User:
    return holder(admin, bound_token(admin, "node-a"), tmp_path)


def test_all_of_it_is_accepted_again(admin: User) -> None:
    said = admin.run("apply", "--dry-run=server", "-f", str(MANIFEST))

    changed = [line for line in said.splitlines() if "unchanged" not in line]
    # kubectl says `configured` of what the server fills in; what is there stays as it is.
    assert not [line for line in changed if "configured" not in line]


def test_the_policies_expressions_are_well_typed(admin: User) -> None:
    for name in ("limpet-presences", "limpet-signed-by-the-cluster"):
        policy = admin.get("validatingadmissionpolicy", name)
        checked = policy.get("status", {}).get("typeChecking", {})
        assert checked.get("expressionWarnings", []) == []


FORBIDDEN = {
    "nodepresences.limpet.dev": "delete patch deletecollection administer",
    "nodepresences.limpet.dev/status": "update patch",
    "nodegrants.limpet.dev": "create update patch delete administer",
    "clusternetworks.limpet.dev": "create update patch delete administer",
    "communities.limpet.dev": "create update patch delete",
    "nodes": "create update patch delete",
    "nodes/proxy": "get",
    "secrets": "get list watch create update delete",
    "configmaps": "get list watch create update",
    "pods": "get create update patch delete",
    "networkpolicies.networking.k8s.io": "create update patch delete",
    "pods/exec": "create",
    "events": "create",
    "serviceaccounts/token": "create",
    "daemonsets.apps": "get create update",
    "leases.coordination.k8s.io": "get update",
    "tokenreviews.authentication.k8s.io": "create",
    "validatingadmissionpolicies.admissionregistration.k8s.io": "get update delete",
    "users": "impersonate",
}


def may(admin: User, who: str, verb: str, resource: str, space: str = SPACE) -> bool:
    """As `kubectl auth can-i` asks, which mixes warnings into its answer."""
    kind, _, part = resource.partition("/")
    plural, _, group = kind.partition(".")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": part}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, "namespace": space}},
    }
    answer = json.loads(User(admin.api, (who,)).run("create", "-o", "json", about=review))
    allowed: bool = answer["status"]["allowed"]
    return allowed


@pytest.mark.parametrize("resource", FORBIDDEN)
def test_an_agent_has_no_right_to(admin: User, resource: str) -> None:
    verbs = FORBIDDEN[resource].split()

    assert [verb for verb in verbs if may(admin, AS_AGENT, verb, resource)] == []


def test_an_agent_may_read_what_it_needs(admin: User) -> None:
    for kind in ("nodes", *(f"{each}.limpet.dev" for each in OURS)):
        for verb in ("get", "list", "watch"):
            assert may(admin, AS_AGENT, verb, kind), (verb, kind)
    # For network policies: whom their selectors mean.
    for kind in ("namespaces", "pods", "networkpolicies.networking.k8s.io"):
        for verb in ("list", "watch"):
            assert may(admin, AS_AGENT, verb, kind), (verb, kind)


def test_the_controller_has_secrets_and_leases_in_its_own_namespace_only(admin: User) -> None:
    for kind in ("secrets", "configmaps", "leases.coordination.k8s.io"):
        assert may(admin, AS_CONTROLLER, "update", kind)
        assert not may(admin, AS_CONTROLLER, "get", kind, "kube-system")
    assert may(admin, AS_CONTROLLER, "create", "tokenreviews.authentication.k8s.io")
    for verb, kind in (("update", "nodes"), ("create", "pods"), ("impersonate", "users")):
        assert not may(admin, AS_CONTROLLER, verb, kind)


# As a thief would.


def test_an_agent_writes_its_own_presence(admin: User, agent_a: User) -> None:
    agent_a.run("create", about=presence("node-a"))
    newer = agent_a.get("nodepresence", "node-a")
    newer["spec"]["sequence"] = 2
    agent_a.run("replace", about=newer)
    # Where another machine's has that name.
    second = f"node-a.{'c' * 24}"
    agent_a.run("create", about=presence("node-a", name=second, uid="c" * 24))

    admin.run("delete", "nodepresence", "node-a", second)


def test_a_kubelet_writes_its_nodes_presence_and_nothing_else(admin: User) -> None:
    """As which an agent asks that is a systemd unit."""
    kubelet = User(admin.api, ("--as=system:node:node-a", "--as-group=system:nodes"))
    kubelet.run("create", about=presence("node-a"))
    written = kubelet.get("nodepresence", "node-a")

    assert "that node only" in kubelet.refusal("create", about=presence("node-b"))
    written["record"] = {"atSeconds": 1}
    assert "record is the controller's" in kubelet.refusal("replace", about=written)
    assert "delete" in kubelet.refusal("delete", "nodepresence", "node-a")
    assert "nodegrants" in kubelet.refusal("create", about=grant("node-a"))
    named_so = User(admin.api, ("--as=system:node:node-b", "--as-group=writers"))
    assert "is neither" in named_so.refusal("create", about=presence("node-b"))

    admin.run("delete", "nodepresence", "node-a")


def test_the_token_of_a_node_writes_no_other_nodes_presence(admin: User, agent_a: User) -> None:
    admin.run("create", about=presence("node-b"))
    victim = admin.get("nodepresence", "node-b")
    taken = {**victim, "spec": {**victim["spec"], "sequence": 9}}
    renamed = {**victim, "spec": {**victim["spec"], "node": "node-a"}}

    assert "is of node node-a" in agent_a.refusal("replace", about=taken)
    assert agent_a.refusal("replace", about=renamed)
    for mine_or_not in ("node-b", "node-a"):
        other = presence(mine_or_not, name=UIDS[mine_or_not])
        assert "is of node node-a" in agent_a.refusal("create", about=other)
    assert "orbidden" in agent_a.refusal("delete", "nodepresence", "node-b")

    assert admin.get("nodepresence", "node-b") == victim
    admin.run("delete", "nodepresence", "node-b")


def test_a_presence_of_another_node_is_not_made_ones_own(admin: User, agent_a: User) -> None:
    """Its name may be the machine's uid, which any node can write into its spec."""
    admin.run("create", about=presence("node-b", name=UIDS["node-b"]))
    found = admin.get("nodepresence", UIDS["node-b"])
    found["spec"]["node"] = "node-a"

    assert "orbidden" in agent_a.refusal("replace", about=found)

    admin.run("delete", "nodepresence", UIDS["node-b"])


def test_an_agent_leaves_the_controllers_part_as_it_is(admin: User, agent_a: User) -> None:
    cloned = presence("node-a", record={"clonedAtSeconds": 1})
    assert "record is the controller's" in agent_a.refusal("create", about=cloned)
    controller = User(admin.api, (AS_CONTROLLER,))
    controller.run("create", about=presence("node-a", record={"atSeconds": 5}))
    found = agent_a.get("nodepresence", "node-a")

    changed = {**found, "record": {"atSeconds": 6}}
    without = {key: value for key, value in found.items() if key != "record"}
    for each in (changed, without):
        assert "record is the controller's" in agent_a.refusal("replace", about=each)
    found["spec"]["sequence"] = 2
    agent_a.run("replace", about=found)

    admin.run("delete", "nodepresence", "node-a")


def test_a_token_bound_to_no_pod_speaks_for_no_node(admin: User, tmp_path: Path) -> None:
    token = admin.run("create", "token", "limpet-agent", "-n", SPACE).strip()

    said = holder(admin, token, tmp_path).refusal("create", about=presence("node-a"))

    assert "names no node" in said


def test_a_pod_that_is_no_agent_writes_nothing(admin: User, tmp_path: Path) -> None:
    thief = holder(admin, bound_token(admin, "node-a", account="bystander"), tmp_path)
    assert "cannot create" in thief.refusal("create", about=presence("node-a"))

    bound = ("--clusterrole=writers", f"--serviceaccount={SPACE}:bystander")
    admin.run("create", "clusterrolebinding", "bystander", *bound)
    wait_until(
        lambda: "is neither" in thief.refusal("create", about=presence("node-a")),
        "it has RBAC's leave, and the policy refuses it all the same",
    )


def _is_nobody(user: User) -> bool:
    said = user.refusal("create", about=presence("node-a"))
    return "must be logged in" in said or "nauthorized" in said or "credentials" in said


def test_a_token_of_another_audience_is_nobodys(admin: User, tmp_path: Path) -> None:
    thief = holder(admin, bound_token(admin, "node-a", "--audience=limpet"), tmp_path)

    assert _is_nobody(thief)


def test_a_token_that_has_expired_is_nobodys(admin: User, tmp_path: Path) -> None:
    header, body, _ = bound_token(admin, "node-a").split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert _is_nobody(holder(admin, signed_token(admin, header, {**claims, "exp": 1}), tmp_path))

    # The same hand signs one that has not: it was refused for its age alone.
    agent = holder(admin, signed_token(admin, header, claims), tmp_path)
    assert not agent.refusal("create", "--dry-run=server", about=presence("node-a"))


def signed_token(admin: User, header: str, claims: dict[str, Any]) -> str:
    """By the cluster's own key for tokens; the API server issues none for less than ten minutes."""
    pem = (admin.api.folder / "pki" / "service-accounts.key").read_bytes()
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = f"{header}.{_base64url(json.dumps(claims).encode())}"
    # ES256 wants the two numbers side by side. Source: RFC 7518, section 3.4.
    pair = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_base64url(b''.join(each.to_bytes(32, 'big') for each in pair))}"


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def test_a_token_is_nobodys_when_its_pod_is_gone(admin: User, tmp_path: Path) -> None:
    admin.run("create", about=pod("limpet-agent-gone", "node-a", "limpet-agent"))
    thief = holder(admin, bound_token(admin, "gone"), tmp_path)
    admin.run("delete", "pod", "limpet-agent-gone", "-n", SPACE, "--force", "--grace-period=0")

    # The API server remembers for some seconds whose a token is.
    wait_until(lambda: "nauthorized" in thief.refusal("get", "nodegrants"), "the token is refused")


def test_an_agent_writes_no_grant_and_reads_no_secret(agent_a: User) -> None:
    assert "cannot create" in agent_a.refusal("create", about=grant("node-a"))
    assert "cannot get" in agent_a.refusal("get", "secret", "limpet-authority", "-n", SPACE)
    assert "cannot delete" in agent_a.refusal("delete", "secret", "limpet-authority", "-n", SPACE)


def test_leave_to_write_grants_is_not_enough(admin: User) -> None:
    writer, controller = User(admin.api, AS_WRITER), User(admin.api, (AS_CONTROLLER,))
    words = "written by Limpet's controller"
    assert words in writer.refusal("create", about=grant("node-a"))

    controller.run("create", about=grant("node-a"))
    assert words in writer.refusal("delete", "nodegrant", "node-a")
    assert words in writer.refusal("label", "nodegrant", "node-a", "one=two")
    assert not writer.refusal("create", "--dry-run=server", about=_community())

    controller.run("delete", "nodegrant", "node-a")


def _community() -> dict[str, Any]:
    """People make those: RBAC alone says who."""
    document = custom("Community", "one", {"members": ["node-a"]})
    del document["document"]
    return document
