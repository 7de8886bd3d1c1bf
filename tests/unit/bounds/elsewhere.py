"""Rows that take a real server, a kernel or a process to be probed, and the test that does it."""

from __future__ import annotations

from limpet.base.bounds.bound import Bound

ELSEWHERE: list[tuple[Bound, str]] = []
"""Row, and `tests/….py::test_…`, which goes up to the bound and over it."""
