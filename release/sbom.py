"""What is in what is given out: a bill of materials. Source: CycloneDX 1.5, JSON.

Its serial number follows from the version and not from chance, as all else here.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from release.bundle import locked_debians
from release.checkout import CHECKOUT, MACHINES, OUT, epoch_s, sha256, version
from release.cross import MUSL_VERSION
from release.libraries import PYTHONS, locked, needed

HTMX = CHECKOUT / "src" / "limpet" / "web" / "static" / "vendor" / "htmx.min.js"
SEARCH_WORKER = CHECKOUT / "docs" / "assets" / "iframe-worker" / "shim.js"
_DEPLOY = CHECKOUT / "deploy"
_LICENCE = [{"license": {"id": "Apache-2.0"}}]


def libraries() -> Iterator[dict[str, Any]]:
    """Of Python, in wheel, package, image and bundle alike."""
    # Of every Python that it is given out for, not of the one that runs this.
    asked = {
        each.name
        for architecture in MACHINES
        for python in PYTHONS
        for each in needed(architecture, python)
    }
    for each in locked():
        if each.name not in asked:
            continue
        purl = f"pkg:pypi/{each.name.lower()}@{each.version}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": each.name,
            "version": each.version,
            "purl": purl,
            "scope": "required",
        }


def debians() -> Iterator[dict[str, Any]]:
    """Of Debian, in the image and in the bundle: each once, with where it is."""
    places: dict[tuple[str, str], set[str]] = {}
    for line in (_DEPLOY / "image" / "amd64.lock").read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["deb", _, path, digest]:
                places.setdefault((path, digest), set()).add("the image")
    for deb in locked_debians():
        places.setdefault((deb.path, deb.sha256), set()).add(f"the bundle for {deb.suite}")
    for (path, digest), where in places.items():
        name, found, rest = path.rpartition("/")[2].replace("%2b", "+").split("_")
        shown = found.replace("%7e", "~").replace("%3a", ":")
        purl = f"pkg:deb/debian/{name}@{shown}?arch={rest.removesuffix('.deb')}"
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": shown,
            "purl": purl,
            "scope": "optional",
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "description": f"in {', '.join(sorted(where))}",
        }


def vendored() -> Iterator[dict[str, Any]]:
    """What of others lies in the checkout, or is linked into a binary that is given out."""
    htmx = (CHECKOUT / "scripts" / "vendor-htmx").read_text(encoding="utf-8")
    (version_of_htmx,) = re.findall(r"^version=([\d.]+)$", htmx, flags=re.M)
    yield {
        **_of_npm("htmx.org", version_of_htmx, "0BSD", HTMX),
        "scope": "required",
        "description": "drawn into the page",
    }
    # Its file is `shim/index.js` of what npm has of that version.
    yield {
        **_of_npm("iframe-worker", "1.0.4", "MIT", SEARCH_WORKER),
        "scope": "optional",
        "description": "search in the documentation where it is read from files",
    }
    purl = f"pkg:generic/musl@{MUSL_VERSION}"
    yield {
        "type": "library",
        "bom-ref": purl,
        "name": "musl",
        "version": MUSL_VERSION,
        "purl": purl,
        "scope": "required",
        "licenses": [{"license": {"id": "MIT"}}],
        "description": "linked into limpet-cni, of Debian 12",
    }


def _of_npm(name: str, found: str, licence: str, file: Path) -> dict[str, Any]:
    purl = f"pkg:npm/{name}@{found}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": found,
        "purl": purl,
        "licenses": [{"license": {"id": licence}}],
        "hashes": [{"alg": "SHA-256", "content": sha256(file)}],
    }


def bill() -> dict[str, Any]:
    """All of it, as JSON has it."""
    components = [*libraries(), *debians(), *vendored()]
    itself = f"pkg:pypi/limpet@{version()}"
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"https://limpet.dev/sbom/{version()}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s())),
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": "limpet",
                "version": version(),
                "purl": itself,
                "licenses": _LICENCE,
            },
        },
        "components": sorted(components, key=lambda each: str(each["bom-ref"])),
        "dependencies": [
            {"ref": itself, "dependsOn": sorted(each["bom-ref"] for each in components)}
        ],
    }


def write_sbom() -> Path:
    OUT.mkdir(parents=True, exist_ok=True)
    target = OUT / f"limpet-{version()}.cdx.json"
    target.write_text(json.dumps(bill(), indent=1, sort_keys=True) + "\n")
    return target
