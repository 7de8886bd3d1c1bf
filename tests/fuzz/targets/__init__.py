"""The targets, a file for each kind of party that they hear: `TARGETS` is all of them."""

from __future__ import annotations

import importlib
import pkgutil

from tests.fuzz.target import Target, registered

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

TARGETS: dict[str, Target] = registered()
