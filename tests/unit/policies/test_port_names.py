"""What names of ports lead to is what looking at every pod would find."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.policies.compiled import AddressRange, AllowedPeers, At, merged
from limpet.policies.policy import Key, NamedPort, PolicyPod
from limpet.policies.port_names import NamedPorts, PortNames
from tests.effort import examples

NAMES = (NamedPort("tcp", "http"), NamedPort("udp", "dns"))
ADDRESSES = [ip_address(each) for each in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "::5")]
PODS = st.builds(
    lambda name, addresses, ports: PolicyPod(Key("a", name), tuple(addresses), {}, ports),
    st.sampled_from("pqrs"),
    st.lists(st.sampled_from(ADDRESSES), unique=True, max_size=2),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([80, 81])),
)
RANGES = st.sampled_from(ADDRESSES).flatmap(
    lambda first: st.integers(0, 2).map(
        lambda more: AddressRange(first.version, int(first), int(first) + more)
    )
)
PEERS = st.builds(
    AllowedPeers,
    st.sampled_from([False, False, False, True]),
    st.frozensets(st.sampled_from(ADDRESSES)),
    st.lists(RANGES, max_size=3).map(merged),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(PODS, st.booleans(), PEERS, st.integers(1, 90)), min_size=1, max_size=8),
    st.sampled_from([NAMES, NAMES[:1]]),
)
def test_what_is_found_again_and_again_is_all_that_peers_have(
    steps: list[tuple[PolicyPod, bool, AllowedPeers, int]], names: tuple[NamedPort, ...]
) -> None:
    pods: dict[Key, PolicyPod] = {}
    known, held = PortNames(), dict[bool, NamedPorts]()
    for pod, stays, peers, times in steps:
        for each in (*[None, pod] * times, *([] if stays else [None])):
            before = pods.pop(pod.key, None)
            if each is not None:
                pods[pod.key] = each
            known.move(before, each)
        held[peers.everybody] = known.find(names, peers, held.get(peers.everybody))
        assert held[peers.everybody].found == {
            At(address, name.protocol, port)
            for each in pods.values()
            for name, port in each.ports.items()
            for address in each.addresses
            if name in names and peers.include(address)
        }
