"""DNS-based service discovery 1.1, paragraph by paragraph: each record that "must exist", with the
names and addresses of its examples.

Source: docs/specification.md of the project kubernetes/dns, whose numbers the tests have.
"""

from __future__ import annotations

import re

import pytest

from limpet.services.values import (
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
)
from tests.unit.dns.test_names import NO_ERROR, NO_NAME, asked, names

ZONE = "svc.cluster.local."
KUBERNETES, HEADLESS = f"kubernetes.default.{ZONE}", f"headless.default.{ZONE}"
_HTTPS = EndpointPort("https", "TCP", 443)
_MORE = EndpointPort("metrics", "UDP", 9153)
_NAMELESS = EndpointPort("", "TCP", 80)
ITEMS = (
    Service(
        "default",
        "kubernetes",
        cluster_ips=("10.3.0.1", "2001:db8::1"),
        ports=(ServicePort("https", "TCP", 443), ServicePort("dns", "UDP", 53)),
    ),
    Service("default", "one", cluster_ips=("10.3.0.2",), ports=(ServicePort("", "TCP", 80),)),
    Service(
        "default",
        "headless",
        cluster_ips=("None",),
        ports=(ServicePort("https", "TCP", 443), ServicePort("metrics", "UDP", 9153)),
    ),
    EndpointSlice(
        "default", "h-4", "headless", 4, (_HTTPS, _MORE),
        (
            Endpoint("10.3.0.100", hostname="my-pet"),
            Endpoint("10.3.0.101", hostname="my-pet-2"),
            Endpoint("10.3.0.102"),
            Endpoint("10.3.0.103", SERVING | TERMINATING, hostname="ends"),
            Endpoint("10.3.0.104", 0, hostname="begins"),
        ),
    ),
    # Another piece of the same endpoints, and of the other family.
    EndpointSlice(
        "default", "h-4b", "headless", 4, (_HTTPS, _MORE),
        (Endpoint("10.3.0.105", hostname="my-pet"),),
    ),
    EndpointSlice(
        "default", "h-6", "headless", 6, (_HTTPS, _MORE),
        (Endpoint("2001:db8::100", hostname="my-pet"),),
    ),
    Service("default", "nobody", cluster_ips=("None",), ports=(ServicePort("https", "TCP", 443),)),
    EndpointSlice("default", "n-4", "nobody", 4, (_HTTPS,), (Endpoint("10.3.0.110", 0),)),
    Service("default", "any", cluster_ips=("None",), publish_not_ready=True),
    EndpointSlice(
        "default", "any-4", "any", 4, (_HTTPS,), (Endpoint("10.3.0.111", 0, hostname="a"),)
    ),
    Service("default", "plain", cluster_ips=("None",)),
    EndpointSlice("default", "p-4", "plain", 4, (_NAMELESS,), (Endpoint("10.3.0.112", READY),)),
    Service("default", "foo", type="ExternalName", external_name=KUBERNETES.rstrip(".")),
)  # fmt: skip


def reverse(address: str) -> str:
    return ".".join((*reversed(address.split(".")), "in-addr.arpa."))


REVERSE_6 = ".".join(reversed("20010db8" + "0" * 21 + "100")) + ".ip6.arpa."


@pytest.mark.parametrize(
    ("paragraph", "name", "kind", "values"),
    [
        ("2.1 comparisons do not look at capitals", "KUBERNETES.Default.svc.cluster.LOCAL.", "A",
         ["10.3.0.1"]),
        ("2.1 ready by the Service's word", f"any.default.{ZONE}", "A", ["10.3.0.111"]),
        ("2.1 ready by the Service's word", f"a.any.default.{ZONE}", "A", ["10.3.0.111"]),
        ("2.1 a hostname of the system's", f"10-3-0-102.{HEADLESS}", "A", ["10.3.0.102"]),
        ("2.2 schema version", "dns-version.cluster.local.", "TXT", ['"1.1.0"']),
        ("2.3.1 A", KUBERNETES, "A", ["10.3.0.1"]),
        ("2.3.1 AAAA", KUBERNETES, "AAAA", ["2001:db8::1"]),
        ("2.3.2 SRV", f"_https._tcp.{KUBERNETES}", "SRV", [f"443 {KUBERNETES}"]),
        ("2.3.2 SRV", f"_dns._udp.{KUBERNETES}", "SRV", [f"53 {KUBERNETES}"]),
        ("2.3.3 PTR", reverse("10.3.0.1"), "PTR", [KUBERNETES]),
        ("2.3.3 PTR", ".".join(reversed("20010db8" + "0" * 23 + "1")) + ".ip6.arpa.", "PTR",
         [KUBERNETES]),
        ("2.4.1 A", HEADLESS, "A", ["10.3.0.100", "10.3.0.101", "10.3.0.102", "10.3.0.105"]),
        ("2.4.1 AAAA", HEADLESS, "AAAA", ["2001:db8::100"]),
        ("2.4.1 hostname, each of its addresses", f"my-pet.{HEADLESS}", "A",
         ["10.3.0.100", "10.3.0.105"]),
        ("2.4.1 hostname", f"my-pet.{HEADLESS}", "AAAA", ["2001:db8::100"]),
        ("2.4.2 SRV, for each combination", f"_https._tcp.{HEADLESS}", "SRV",
         [f"443 {each}.{HEADLESS}" for each in ("10-3-0-102", "my-pet", "my-pet-2")]),
        ("2.4.2 SRV, for each combination", f"_metrics._udp.{HEADLESS}", "SRV",
         [f"9153 {each}.{HEADLESS}" for each in ("10-3-0-102", "my-pet", "my-pet-2")]),
        ("2.4.3 PTR", reverse("10.3.0.100"), "PTR", [f"my-pet.{HEADLESS}"]),
        ("2.4.3 PTR", reverse("10.3.0.102"), "PTR", [f"10-3-0-102.{HEADLESS}"]),
        ("2.4.3 PTR", REVERSE_6, "PTR", [f"my-pet.{HEADLESS}"]),
        ("2.5 CNAME", f"foo.default.{ZONE}", "CNAME", [KUBERNETES]),
        ("2.5 CNAME, and what it leads to", f"foo.default.{ZONE}", "A", ["10.3.0.1", KUBERNETES]),
        ("2.6 pods", "10-9-8-7.default.pod.cluster.local.", "A", ["10.9.8.7"]),
    ],
)  # fmt: skip
def test_every_record_that_must_exist_does(
    paragraph: str, name: str, kind: str, values: list[str]
) -> None:
    _, known = names(*ITEMS)

    code, lines = asked(known, name, kind)

    # Weight and priority are not prescribed.
    found = sorted(re.sub(r"^SRV \d+ \d+ ", "SRV ", line.split(" ", 1)[1]) for line in lines)
    assert code == NO_ERROR, paragraph
    assert [each.split(" ", 1)[1] for each in found] == sorted(values), paragraph


@pytest.mark.parametrize(
    ("paragraph", "name", "kind", "code"),
    [
        ("2.3.2 an unnamed port has none", f"_._tcp.one.default.{ZONE}", "SRV", NO_NAME),
        ("2.3.2 of another protocol", f"_https._udp.{KUBERNETES}", "SRV", NO_NAME),
        ("2.4.1 nobody is ready", f"nobody.default.{ZONE}", "A", NO_NAME),
        ("2.4.1 one that ends", f"ends.{HEADLESS}", "A", NO_NAME),
        ("2.4.1 one that is not ready", f"begins.{HEADLESS}", "A", NO_NAME),
        ("2.4.2 nobody is ready", f"_https._tcp.nobody.default.{ZONE}", "SRV", NO_NAME),
        ("2.4.2 an unnamed port has none", f"_._tcp.plain.default.{ZONE}", "SRV", NO_NAME),
        ("2.6 no address", "10-9-8-777.default.pod.cluster.local.", "A", NO_NAME),
        ("there, without such a record", KUBERNETES, "TXT", NO_ERROR),
    ],
)
def test_what_must_not_exist_does_not(paragraph: str, name: str, kind: str, code: str) -> None:
    _, known = names(*ITEMS)

    assert asked(known, name, kind) == (code, []), paragraph
