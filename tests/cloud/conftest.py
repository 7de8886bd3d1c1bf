"""Controllers that end with the test."""

from __future__ import annotations

from tests.controller.conftest import controller, make_controller

__all__ = ["controller", "make_controller"]
