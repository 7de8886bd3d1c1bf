"""What of a pod a controller takes, in the form in which it keeps it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.reported_pods import checked_pod

_groups = st.sampled_from(["0", "00", "0000", "1", "0db8", "FFFF", "ffff", "12345", "g", ""])
_texts = (
    st.ip_addresses().map(str)
    | st.integers(0, 2**128 - 1).map(lambda n: IPv6Address(n).exploded.upper())
    | st.integers(0, 2**32 - 1).map(lambda n: f"::ffff:{IPv4Address(n)}")
    | st.lists(_groups, min_size=2, max_size=9).map(":".join)
    | st.lists(st.sampled_from(["0", "1", "01", "255", "256", ""]), max_size=5).map(".".join)
    | st.text(max_size=45)
)


@given(_texts)
@example("::1.2.3.4")
@example("::ffff:1.2.3.4")
@example("1:0:2:3:4:5:6:7")
@example("1.2.3.4\0")
@example("\u0661.2.3.4")
def test_an_address_is_taken_and_written_as_python_does(text: str) -> None:
    pod = InterfaceAddresses("n", "s", "p", "eth0", (text,))
    try:
        wanted = str(ip_address(text))
    except ValueError:
        wanted = ""
    if not wanted or "%" in text:
        with pytest.raises(ValueError, match="address"):
            checked_pod(pod)
    else:
        assert checked_pod(pod).addresses == (wanted,)
