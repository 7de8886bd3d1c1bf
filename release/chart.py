"""Chart and manifests of a version: those of the checkout, with that version's image in them."""

from __future__ import annotations

import re
from pathlib import Path

from release.archives import files_below, write_tar
from release.checkout import CHECKOUT, OUT, ReleaseError, version

DEPLOY = CHECKOUT / "deploy"
_OF_CHECKOUTS = "limpet.dev/limpet:dev"


def image_tag(pep440: str) -> str:
    """What a registry takes: there is no `+` in tags. Source: OCI distribution specification."""
    return pep440.replace("+", "-")


def semantic(pep440: str) -> str:
    """The version as Helm wants it. Source: Semantic Versioning 2.0.0."""
    public, _, commit = pep440.partition("+")
    found = re.fullmatch(r"(\d+\.\d+\.\d+)\.?((?:dev|a|b|rc)\d+)?", public)
    if found is None:
        raise ReleaseError(f"version {pep440}: tags are vMAJOR.MINOR.PATCH, or with rcN behind")
    core, before = found.groups()
    return core + (f"-{before}" if before else "") + (f"+{commit}" if commit else "")


def manifest(name: str) -> bytes:
    """A file of deploy/ as it is given out."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    return text.replace(_OF_CHECKOUTS, f"limpet.dev/limpet:{image_tag(version())}").encode()


def write_chart() -> list[Path]:
    """The chart, packed as `helm package` does, and what `kubectl apply` takes."""
    files: dict[str, Path | bytes] = {
        f"limpet/{name}": path for name, path in files_below(DEPLOY / "chart").items()
    }
    described = (DEPLOY / "chart" / "Chart.yaml").read_text(encoding="utf-8")
    of_version = re.sub(r"^#.*\n", "", described, flags=re.MULTILINE)
    of_version = re.sub(
        r"^version: .*$", f"version: {semantic(version())}", of_version, flags=re.MULTILINE
    )
    of_version = re.sub(
        r"^appVersion: .*$", f'appVersion: "{image_tag(version())}"', of_version, flags=re.MULTILINE
    )
    files["limpet/Chart.yaml"] = of_version.encode()
    OUT.mkdir(parents=True, exist_ok=True)
    chart = OUT / f"limpet-chart-{semantic(version())}.tgz"
    write_tar(chart, files, packed=True)
    manifests = OUT / "limpet.yaml"
    manifests.write_bytes(manifest("limpet.yaml"))
    return [chart, manifests]
