"""What is in what is given out: a bill of materials. Source: CycloneDX 1.5, JSON.

Its serial number follows from the version and not from chance, as all else here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from release.checkout import CHECKOUT, MACHINES, OUT, epoch_s, version
from release.libraries import PYTHONS, locked, needed

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


def image_packages(lock: Path) -> Iterator[dict[str, Any]]:
    """Of Debian, in the image."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["deb", _, path, digest]:
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
                    "description": "in the image, of Debian 12",
                }


def bill() -> dict[str, Any]:
    """All of it, as JSON has it."""
    components = [*libraries(), *image_packages(CHECKOUT / "deploy" / "image" / "amd64.lock")]
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
