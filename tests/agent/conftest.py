"""Controllers and namespaces that end with the test."""

from __future__ import annotations

from tests.controller.conftest import controller, make_controller
from tests.kernel.conftest import make_netns

__all__ = ["controller", "make_controller", "make_netns"]
