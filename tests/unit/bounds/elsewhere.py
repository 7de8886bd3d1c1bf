"""Rows that take a real server, a kernel or a process to be probed, and the test that does it."""

from __future__ import annotations

from limpet.base.bounds import members
from limpet.base.bounds.bound import Bound

_MEMBERS = "tests/controller/test_member_bounds.py::test_"
ELSEWHERE: list[tuple[Bound, str]] = [
    (members.REPORT_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SHOW_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.PUBLISH_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SMALL_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SHOWN_DOCUMENTS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (members.HELLO_DOCUMENTS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (members.SEGMENT_VERSIONS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (members.MEMBER_CONNECTIONS, _MEMBERS + "a_node_has_a_few_connections_and_the_oldest_goes"),
    (
        members.UNSIGNED_STEP,
        "tests/unit/cluster/test_membership.py::test_a_sequence_that_the_controller_tells_and_does_"
        "not_show_moves_a_node_so_far_only",
    ),
]
"""Row, and `tests/….py::test_…`, which goes up to the bound and over it."""
