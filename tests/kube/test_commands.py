"""A person's commands from a machine that has a kubeconfig, and nothing else of the cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from limpet.base.http.connection import Headers, HttpAnswer
from limpet.cli.main import main
from limpet.cluster.api import ADMIN_ACCOUNT, ADMIN_AUDIENCE, ADMIN_HEADER
from limpet.controller.admin.api_server import Caller, ClusterAccess
from limpet.kubernetes.access.kubeconfig import read_kubeconfig
from limpet.kubernetes.client import Client
from limpet.kubernetes.pods import PODS, post_to_pod
from limpet.lab.command import LabError
from limpet.lab.files import write_settings
from limpet.lab.kube.control_plane import ControlPlane
from limpet.lab.launch import launcher
from tests.controller.machines import Controller, free_port
from tests.kube.installed.test_accounts import answers, kubeconfig_of, settings_in_the_manifests
from tests.kube.installed.test_manifests import MANIFEST, SPACE
from tests.waiting import PATIENCE_S, wait_until
from tests.web.test_access import Browser

PORTS = {"limpet-controller-a": 7470, "limpet-controller-b": 7471}
"""Of the two replicas, by their pods' names, which are asked in this order."""


class Person:
    """Runs `limpet` with one kubeconfig, and keeps what it said."""

    def __init__(self, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.kubeconfig = kubeconfig
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._capsys.readouterr()
        code = main([*words, "--kubeconfig", str(self.kubeconfig)])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return code

    def json(self, *words: str) -> dict[str, Any]:
        assert self(*words, "--output", "json") == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


def as_pod(api: ControlPlane, name: str, port: int) -> None:
    """The API server takes what listens at its own address for the controller's pod."""
    labels = {"app.kubernetes.io/part-of": "limpet", "app.kubernetes.io/component": "controller"}
    container = {
        "name": "controller",
        "image": "none",
        "ports": [{"name": "api", "containerPort": port}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": SPACE, "labels": labels},
        "spec": {"serviceAccountName": "limpet-controller", "containers": [container]},
    }
    api.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(pod))
    address = api.addresses[0]
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    api.kubectl(
        *("patch", "pod", name, "-n", SPACE, "--subresource=status", "--type=merge"),
        f"--patch={json.dumps({'status': status})}",
    )


def make_controller(api: ControlPlane, folder: Path, port: int) -> Controller:
    """A replica beside the API server, as its account, with the manifests' settings."""
    kubeconfig = kubeconfig_of(api, folder, "limpet-controller")
    config = yaml.safe_load(kubeconfig.read_text())
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = api.url_inside
    inside = folder / "inside.kubeconfig"
    inside.write_text(yaml.safe_dump(config))
    settings = {**settings_in_the_manifests(), "kubeconfig": str(inside)}
    del settings["metrics_listen"]
    controller = Controller(
        folder / str(port),
        pod_cidrs=["10.0.0.0/16"],
        **settings,
        listen=f"{api.addresses[0]}:{port}",
    )
    controller.prefix = ["nsenter", f"--net=/run/netns/{api.netns}"]
    return controller


def wait_until_it_answers(controller: Controller) -> None:
    """Nodes and people, whether it leads or follows."""

    def answers() -> bool:
        told = controller.log.read_text()
        return "event=follows" in told or "leads=true" in told

    try:
        wait_until(answers, "it leads or follows")
    except AssertionError as error:
        raise AssertionError(controller.log.read_text()) from error


@pytest.fixture(scope="module")
def replicas(
    api: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Controller]]:
    api.kubectl("apply", "-f", str(MANIFEST))
    folder = tmp_path_factory.mktemp("controllers")
    replicas = {}
    try:
        for name, port in PORTS.items():
            replicas[name] = make_controller(api, folder, port).start()
            as_pod(api, name, port)
        for each in replicas.values():
            wait_until_it_answers(each)
        yield replicas
    finally:
        for each in replicas.values():
            each.kill_if_it_runs()


@pytest.fixture
def person(
    api: ControlPlane, replicas: dict[str, Controller], capsys: pytest.CaptureFixture[str]
) -> Person:
    """May do everything at the API server, with a client certificate and no token."""
    return Person(api.kubeconfig, capsys)


def test_what_a_person_asks_gets_to_the_controller_that_leads(person: Person) -> None:
    assert person.json("network", "show")["cluster"] == "limpet"
    assert person("token", "create", "--role", "relay") == 0
    assert person.out.startswith("lmp1_")
    assert person("node", "list") == 0
    assert "no node has joined" in person.err
    assert person("segment", "list") == person("pod", "list") == 0


def test_communities_that_are_made_so_are_objects_as_if_they_had_been_applied(
    person: Person, api: ControlPlane
) -> None:
    assert person("community", "create", "cranes", "--selector", "site=harbour") == 0

    spec = json.loads(api.kubectl("get", "community", "cranes", "-o", "json"))["spec"]
    assert spec["nodeSelector"]
    assert person("community", "remove", "cranes", "--all") == 0


def test_the_controllers_own_words_come_back(person: Person) -> None:
    assert person("node", "remove", "nobody") == 1
    assert "nobody" in person.err
    assert len(person.err.splitlines()) == 1


def test_a_replica_that_is_gone_or_follows_is_passed_over(
    person: Person, replicas: dict[str, Controller]
) -> None:
    first, second = replicas.values()
    leader, other = (first, second) if answers(first) else (second, first)

    leader.kill()
    # When the other has become the leader.
    wait_until(lambda: person("network", "show") == 0, "the other leads")

    assert answers(other)
    leader.start()
    assert person("network", "show") == 0, person.err


def join_as(api: ControlPlane, folder: Path, token: str) -> subprocess.CompletedProcess[str]:
    """A machine beside the API server, which asks whichever controller leads."""
    folder.mkdir()
    config = folder / "agent.toml"
    parts = {f"{each}_dir": str(folder / each) for each in ("state", "data", "run")}
    write_settings(config, {**parts, "socket": str(folder / "agent.sock")})
    (folder / "token").write_text(token)
    at = [
        word for port in PORTS.values() for word in ("--controller", f"{api.addresses[0]}:{port}")
    ]
    words = ["join", "--token-file", str(folder / "token"), *at, "--name", "late"]
    inside = ["nsenter", f"--net=/run/netns/{api.netns}", sys.executable, "-m", "limpet"]
    return launcher().run([*inside, *words, "--config", str(config)], timeout=PATIENCE_S)


def secret_as_it_is(api: ControlPlane, name: str) -> str:
    """Such that it can be put back."""
    document = json.loads(api.kubectl("get", "secret", name, "-n", SPACE, "-o", "json"))
    del document["metadata"]["resourceVersion"], document["metadata"]["uid"]
    return json.dumps(document)


def is_removed(api: ControlPlane, secret: str) -> bool:
    """The token, as the store has it; False also while there is none."""
    try:
        document = json.loads(secret_as_it_is(api, secret))
    except LabError:
        return False
    record = json.loads(base64.b64decode(document["data"]["record"]))
    return record["removed_at_s"] is not None


def test_a_token_that_is_removed_so_lets_in_nobody_also_when_another_replica_leads(
    api: ControlPlane, person: Person, replicas: dict[str, Controller], tmp_path: Path
) -> None:
    assert person("token", "remove", "--all") == 0, person.err
    taken, kept = (person.json("token", "create") for _ in range(2))
    (first, second) = person.json("token", "list")["tokens"]
    assert [first["id"], second["id"]] == [taken["id"], kept["id"]]
    assert first["created_by"] == "system:serviceaccount:limpet-system:limpet-administrator"
    before = secret_as_it_is(api, f"limpet-token-{taken['id']}")
    assert person("token", "remove", taken["id"]) == 0, person.err
    assert person.out == f"removed {taken['id']}\n"

    # Its Secret is deleted, or put back as it was, by hand: what is known is written again.
    secret = f"limpet-token-{taken['id']}"
    api.kubectl("delete", "secret", secret, "-n", SPACE)
    wait_until(lambda: is_removed(api, secret))
    api.kubectl("replace", "-f", "-", stdin=before)
    wait_until(lambda: is_removed(api, secret))

    leader = next(filter(answers, replicas.values()))
    leader.kill()
    # When the other has become the leader.
    wait_until(lambda: person("token", "list") == 0, "the other leads")
    assert taken["id"] not in person.out
    assert kept["id"] in person.out
    refused = join_as(api, tmp_path / "refused", taken["token"])
    assert refused.returncode == 1
    assert "an administrator removed the token" in refused.stderr
    joined = join_as(api, tmp_path / "joined", kept["token"])
    assert joined.returncode == 0, joined.stderr
    leader.start()

    listed = {each["id"]: each for each in person.json("token", "list", "--all")["tokens"]}
    uid = listed[kept["id"]]["uid"]
    assert person("token", "remove", kept["id"]) == 1
    assert f"limpet node remove {uid}" in person.err
    assert person("node", "remove", uid) == 0, person.err


def test_whoever_may_nothing_is_told_which_right_is_missing_and_gets_it_by_one_binding(
    api: ControlPlane, person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    carla = Person(api.write_kubeconfig("carla", "carla"), capsys)

    assert carla("node", "list") == 1
    assert "limpet-administration" in carla.err
    assert "carla" in carla.err

    api.kubectl(
        *("create", "rolebinding", "carla", "-n", SPACE),
        *("--role=limpet-administration", "--user=carla"),
    )
    wait_until(lambda: carla("node", "list") == 0, "carla may ask")


async def ask_each(kubeconfig: Path, headers: Headers) -> list[HttpAnswer]:
    """For a join token, at both replicas."""
    client = Client(read_kubeconfig([kubeconfig]))
    try:
        answers = []
        for name, port in PORTS.items():
            pod = await client.get(PODS, name, namespace=SPACE)
            path, body = "/v1/admin/token.create", b'{"ttl_s": 60}'
            answers.append(await post_to_pod(client, pod, port, path, body, headers))
        return answers
    finally:
        client.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("account", "audience", "said"),
    [
        (ADMIN_ACCOUNT, "https://elsewhere", "does not take the token"),
        ("limpet-agent", ADMIN_AUDIENCE, "limpet-system:limpet-agent may not"),
        (None, ADMIN_AUDIENCE, "no token"),
    ],
    ids=["another audience", "another account", "no token"],
)
def test_a_token_of_another_kind_changes_nothing(
    api: ControlPlane, person: Person, account: str | None, audience: str, said: str
) -> None:
    assert person("network", "show") == 0
    token = ""
    if account:
        words = ("create", "token", account, "-n", SPACE, f"--audience={audience}")
        token = api.kubectl(*words).strip()

    answers = asyncio.run(ask_each(api.kubeconfig, [(ADMIN_HEADER, token)] if token else []))

    assert sorted(each.status for each in answers) == [403, 503]
    assert any(said in each.body.decode() for each in answers)


def test_a_cluster_without_limpet_and_a_kubeconfig_that_points_nowhere_are_said_in_words(
    api: ControlPlane, person: Person, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert person("node", "list", "--namespace", "elsewhere") == 1
    assert "there is none in namespace elsewhere" in person.err
    assert person("node", "list", "--context", "nowhere") == 1
    assert "nowhere" in person.err

    config = yaml.safe_load(api.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(yaml.safe_dump(config))
    lost = Person(nowhere, capsys)
    assert lost("node", "list") == 1
    assert "nothing listens there" in lost.err


@contextlib.contextmanager
def page_of(folder: Path, kubeconfig: Path) -> Iterator[Browser]:
    """As the Deployment's pod runs it, and somebody at the other end of a port-forward."""
    port = free_port()
    config = folder / "page.toml"
    settings = {
        "store": "kubernetes",
        "namespace": SPACE,
        "kubeconfig": str(kubeconfig),
        "socket": str(folder / "none.sock"),
        "page_listen": f"127.0.0.1:{port}",
    }
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    words = ["ui", "--controller", "--tokens-only", "--config", str(config)]
    with subprocess.Popen([sys.executable, "-m", "limpet", *words]) as process:
        try:
            browser = Browser(f"http://127.0.0.1:{port}")

            def listens() -> bool:
                with contextlib.suppress(ConnectionRefusedError):
                    return browser.ask("GET", "/enter").status == 200
                return False

            wait_until(listens)
            yield browser
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


def test_the_page_shows_what_whichever_controller_leads_knows_to_who_has_a_token(
    api: ControlPlane, replicas: dict[str, Controller], person: Person, tmp_path: Path
) -> None:
    api.kubectl("apply", "-f", str(MANIFEST.with_name("page.yaml")))
    in_the_pod = next(iter(replicas.values()))  # `kubectl exec` into one, which may follow
    made = in_the_pod.run_inside("ui", "token", "create", "ann", "--write")
    token = made.stdout.strip()
    assert token.startswith("limpet-page-"), made.stderr
    secret = api.kubectl("get", "secret", "limpet-page-tokens", "-n", SPACE, "-o", "json")
    assert token not in str(base64.b64decode(json.loads(secret)["data"]["tokens.json"]))

    with page_of(tmp_path, kubeconfig_of(api, tmp_path, "limpet-page")) as browser:
        wait_until(lambda: browser.enter(token).status == 303)
        assert person("community", "create", "cranes") == 0, person.err
        wait_until(lambda: "cranes" in browser.ask("GET", "/communities").text)
        leader = next(filter(answers, replicas.values()))
        leader.kill()
        (other,) = (each for each in replicas.values() if each is not leader)
        wait_until(lambda: answers(other), "the other leads")
        assert person("community", "create", "diggers") == 0, person.err
        wait_until(lambda: "diggers" in browser.ask("GET", "/communities").text)
        leader.start()

        assert in_the_pod.run_inside("ui", "token", "remove", "ann").returncode == 0
        wait_until(lambda: browser.ask("GET", "/").status == 303)


def test_who_acts_on_the_page_is_named_beside_the_account_that_it_asks_as(
    api: ControlPlane, person: Person, replicas: dict[str, Controller]
) -> None:
    async def act() -> None:
        caller = Caller(ClusterAccess(read_kubeconfig([api.kubeconfig]), SPACE))
        try:
            await caller("community.create", by="page token ann", community="lifts")
        finally:
            caller.close()
            await asyncio.sleep(0)

    assert person("network", "show") == 0  # one leads
    asyncio.run(act())

    logs = "".join(each.log.read_text() for each in replicas.values())
    assert "page token ann, as system:serviceaccount:limpet-system:limpet-administrator" in logs
