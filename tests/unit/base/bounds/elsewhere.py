"""Rows that take a real server, a kernel or a process to be probed, and the test that does it: also
in one place of several, of which others have a probe."""

from __future__ import annotations

from limpet.base.bounds import administrators, members, servers, strangers, tenants, words
from limpet.base.bounds.bound import Bound

_MEMBERS = "tests/controller/attackers/test_member_bounds.py::test_"
_STRANGERS = "tests/controller/attackers/test_strangers.py::test_"
_FIGURES = "tests/unit/base/metrics/test_metrics_server.py::test_"
_HEALTH = "tests/agent/test_service_health.py::test_"
_RELAY = "tests/relay/test_relay_tls_faults.py::test_"
_OWN = "tests/unit/datapath/test_own_node.py::test_"
_HALF_OPEN = "tests/datapath/tunnel/ipsec/test_ipsec_half_open.py::test_"
_HALF_OPEN_SO_MANY = (
    _HALF_OPEN + "who_ends_no_key_exchange_has_so_many_and_all_together_have_so_many"
)
ELSEWHERE: list[tuple[Bound, str]] = [
    (
        members.PRESENCE_OBJECTS,
        "tests/kubernetes/test_follower.py::test_a_node_that_makes_presences_without_end_has_a_few_"
        "and_others_theirs",
    ),
    (strangers.IKE_UNPROVEN, _HALF_OPEN_SO_MANY),
    (strangers.IKE_HALF_OPEN_OF_ONE, _HALF_OPEN_SO_MANY),
    (strangers.IKE_HALF_OPEN, _HALF_OPEN_SO_MANY),
    (strangers.IKE_HALF_OPEN_S, _HALF_OPEN + "the_settings_have_the_bounds"),
    (
        strangers.HEALTH_PORTS,
        _HEALTH + "a_node_answers_at_so_many_ports_and_says_of_which_it_does_not",
    ),
    (
        tenants.POD_LISTED,
        "tests/datapath/node/test_pods.py::test_of_addresses_without_number_a_check_lists_so_many_"
        "and_a_scan_keeps_what_it_looks_for",
    ),
    (
        administrators.ADMIN_CONNECTIONS,
        "tests/controller/attackers/test_administrators.py::test_an_account_has_a_few_connections_"
        "and_others_have_their_own",
    ),
    (
        administrators.ADMIN_BODY,
        "tests/controller/attackers/test_administrators.py::test_what_an_account_sends_has_a_bound",
    ),
    (members.PATHS_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.REPORT_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SHOW_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.PUBLISH_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SMALL_BODY, _MEMBERS + "a_body_has_a_bound_by_what_it_is_for"),
    (members.SHOWN_DOCUMENTS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (members.HELLO_DOCUMENTS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (members.SEGMENT_VERSIONS, _MEMBERS + "what_is_counted_in_a_request_has_a_bound"),
    (strangers.API_HEAD, _STRANGERS + "a_stranger_s_head_is_read_as_far_as_its_bound"),
    (strangers.HEADERS, _STRANGERS + "a_request_has_no_more_headers_than_its_bound"),
    (strangers.JOIN_BODY, _STRANGERS + "the_body_of_a_join_is_read_as_far_as_its_bound"),
    (
        strangers.FIGURES_CONNECTIONS,
        _FIGURES + "beyond_the_most_connections_the_oldest_makes_room_and_later_ones_are_served",
    ),
    (
        strangers.FIGURES_CONNECTIONS_OF_ONE,
        _FIGURES + "beyond_the_most_connections_the_oldest_makes_room_and_later_ones_are_served",
    ),
    (strangers.FIGURES_REQUEST, _FIGURES + "a_request_is_read_as_far_as_its_bound"),
    (strangers.HEALTH_CONNECTIONS, _HEALTH + "who_asks_nothing_keeps_nobody_out"),
    (strangers.HEALTH_CONNECTIONS_OF_ONE, _HEALTH + "who_asks_nothing_keeps_nobody_out"),
    (strangers.HEALTH_REQUEST, _HEALTH + "what_is_too_large_or_no_http_1_is_not_answered"),
    (
        strangers.RELAY_GREETING,
        _RELAY + "a_thousand_idle_connections_are_bounded_and_a_site_with_members_gets_through",
    ),
    (
        strangers.RELAY_GREETING_OF_ONE,
        _RELAY + "one_address_has_few_of_the_places_of_those_who_have_proven_nothing",
    ),
    (
        servers.GATEWAY_MEMORY,
        "tests/nat/test_port_mapping.py::test_a_gateway_whose_answer_has_no_end_is_told_as_that",
    ),
    (
        servers.GATEWAY_TALK_S,
        "tests/nat/test_port_mapping.py::test_a_gateway_that_never_comes_to_an_end_is_left",
    ),
    (
        words.TRACE_STEPS,
        "tests/cli/test_trace_flood.py::test_whoever_sends_on_and_on_a_trace_has_seen_enough_and_"
        "ends",
    ),
    (
        words.SNAPSHOT,
        "tests/unit/cluster/snapshot/test_file.py::test_a_file_over_its_bound_is_not_begun_to_read",
    ),
    (members.RELAY_TLS_NODES, _RELAY + "of_more_nodes_than_a_relay_takes_over_tls_one_is_let_go"),
    (
        members.PUT_OFF_PER_S,
        _MEMBERS + "who_asks_on_although_it_is_put_off_waits_for_each_answer",
    ),
    (members.MEMBER_CONNECTIONS, _MEMBERS + "a_node_has_a_few_connections_and_the_oldest_goes"),
    (
        members.PRESENCE_ADDRESSES,
        _OWN + "a_link_with_hundreds_of_addresses_leaves_room_for_one_of_each_other",
    ),
    (
        members.PRESENCE_ENDPOINTS,
        _OWN + "of_too_many_endpoints_those_that_are_reached_from_everywhere_are_told",
    ),
    (
        members.REPORTED_PODS,
        "tests/unit/cloud/test_pod_reports.py::test_more_than_fits_one_report_is_told_in_several_"
        "and_no_more_than_a_controller_takes",
    ),
    (
        members.SEQUENCE,
        "tests/unit/cluster/test_membership.py::test_a_node_whose_highest_sequence_was_used_up_says"
        "_so_and_joins_anew",
    ),
    (
        members.ABSENT_ADDRESSES,
        "tests/unit/cluster/test_membership.py::test_of_pods_that_are_gone_a_node_tells_as_many_as_"
        "others_take",
    ),
    (
        members.UNSIGNED_STEP,
        "tests/unit/cluster/test_membership.py::test_a_sequence_that_the_controller_tells_and_does_"
        "not_show_moves_a_node_so_far_only",
    ),
]
"""Row, and `tests/….py::test_…`, which goes up to the bound and over it."""
