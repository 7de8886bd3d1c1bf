"""A real Prometheus on a node of a world, that scrapes all of it by the pods' network."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from limpet.lab.world.machine import Machine
from limpet.linux.namespaces import Namespace
from tests.waiting import PATIENCE_S, wait_until

CHECKOUT = Path(__file__).parents[2]
MONITORING = CHECKOUT / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
_AT = "127.0.0.1:9090"
INTERVAL_S = 1


@cache
def program(name: str) -> str:
    """`prometheus` or `promtool`."""
    found = subprocess.run(
        [CHECKOUT / "scripts" / "fetch-prometheus"], check=True, stdout=subprocess.PIPE, text=True
    )
    return f"{found.stdout.strip()}/{name}"


def rules() -> list[dict[str, Any]]:
    """Of alerts.yaml, in order."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


class Prometheus:
    """Within the block it runs on the node, with the alerts of the product."""

    def __init__(
        self, machine: Machine, folder: Path, jobs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """`jobs`: by name of the job, address of each target by its `instance`."""
        self._machine = machine
        self._folder = folder
        self._jobs = jobs
        self.targets = sum(map(len, jobs.values()))

    def __enter__(self) -> Prometheus:
        config = self._folder / "prometheus.yaml"
        config.write_text(json.dumps(self._configuration()), encoding="utf-8")
        self._log = open(self._folder / "prometheus.log", "wb")
        self._process = subprocess.Popen(
            [
                *("nsenter", f"--net={self._machine.netns_path}", program("prometheus")),
                f"--config.file={config}",
                f"--storage.tsdb.path={self._folder / 'tsdb'}",
                f"--web.listen-address={_AT}",
                "--log.level=warn",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        try:
            wait_until(self._is_ready, f"Prometheus answers ({self._log.name})")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _configuration(self) -> dict[str, Any]:
        return {
            "global": {
                "scrape_interval": f"{INTERVAL_S}s",
                "evaluation_interval": f"{INTERVAL_S}s",
            },
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [at], "labels": {"instance": instance}}
                        for instance, at in targets.items()
                    ],
                }
                for job, targets in self._jobs.items()
            ],
        }

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            self._get("-/ready")
        except OSError:
            return False
        return True

    def _get(self, path: str, **arguments: str) -> bytes:
        """Raises: OSError."""
        url = f"http://{_AT}/{path}?{urllib.parse.urlencode(arguments)}"
        with (
            Namespace(self._machine.netns_path) as namespace,
            namespace.entered(),
            urllib.request.urlopen(url, timeout=PATIENCE_S) as answer,
        ):
            body: bytes = answer.read()
        return body

    # Asking

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Samples of now, each with `metric` and `value`. Raises: AssertionError with its words."""
        try:
            body = self._get("api/v1/query", query=expression)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        result = json.loads(body)["data"]
        found: list[dict[str, Any]] = result["result"]
        return found if result["resultType"] == "vector" else [{"metric": {}, "value": found}]

    def values(self, expression: str) -> dict[str, float]:
        """By instance."""
        return {
            each["metric"].get("instance", ""): float(each["value"][1])
            for each in self.ask(expression)
        }

    def names(self) -> set[str]:
        """Of all figures that were ever scraped."""
        return set(json.loads(self._get("api/v1/label/__name__/values"))["data"])

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Of each rule those that are pending or firing. Raises: AssertionError where one fails."""
        groups = json.loads(self._get("api/v1/rules"))["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        failed = [(rule["name"], rule["lastError"]) for rule in found if rule["health"] == "err"]
        assert failed == []
        return {rule["name"]: rule["alerts"] for rule in found}

    def active(self) -> set[str]:
        """Names of the alerts that are pending or firing."""
        return {name for name, alerts in self.alerts().items() if alerts}

    def until_active(self, *names: str) -> None:
        """They are pending or firing. Raises: AssertionError with those that are not."""
        end_s = time.monotonic() + PATIENCE_S
        while silent := set(names) - self.active():
            assert time.monotonic() < end_s, f"neither pending nor firing: {silent}"
            time.sleep(INTERVAL_S / 4)

    def until_scraped(self) -> None:
        """All targets answer. Raises: AssertionError with those that do not, and why."""
        wait_until(
            lambda: (self.values("up") and not self._silent()) or None,
            "all targets answer",
        )

    def _silent(self) -> dict[str, str]:
        """Why, by URL."""
        targets = json.loads(self._get("api/v1/targets", state="active"))["data"]["activeTargets"]
        return {each["scrapeUrl"]: each["lastError"] for each in targets if each["health"] != "up"}


def finite(samples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is a sample with a number."""
    return any(str(each["value"][1]) not in ("NaN", "+Inf", "-Inf") for each in samples)
