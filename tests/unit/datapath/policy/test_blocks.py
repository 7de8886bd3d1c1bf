"""Sets of many ipBlocks have just the addresses that the blocks have."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from limpet.datapath.policy.blocks import block_sets, bounds_of_text, range_text
from limpet.policies.compiled import AddressRange, merged

BITS = {4: 32, 6: 128}


@st.composite
def ranges(draw: st.DrawFn, version: int) -> list[AddressRange]:
    """Prefixes, as blocks are, and what is left of one without its exceptions."""
    bits = BITS[version]
    found = []
    for _ in range(draw(st.integers(0, 25))):
        length = draw(st.sampled_from((bits, bits, bits - 8, bits - 1, bits // 2, 0)))
        size = 1 << (bits - length)
        first = draw(st.integers(0, (1 << bits) - 1)) // size * size
        cut = draw(st.integers(0, min(size - 1, 5)))
        found.append(AddressRange(version, first + cut, first + size - 1))
    return list(merged(found))


def bounds(text: str, version: int) -> tuple[int, int]:
    first, behind = bounds_of_text(text, version)
    end = 1 << BITS[version] if behind is None else int.from_bytes(behind, "big")
    return int.from_bytes(first, "big"), end - 1


@given(st.sampled_from((4, 6)).flatmap(lambda version: ranges(version)), st.integers(0, 4))
def test_they_have_the_addresses_of_the_blocks_and_no_others(
    found: list[AddressRange], tree: int
) -> None:
    if not found:
        assert block_sets(found, 4) == []
        return
    version = found[0].version
    sets = block_sets(found, version, tree=tree)
    held = []
    for each in sets:
        if not each.infix:
            assert len([one for one in sets if not one.infix]) == 1
            held += [AddressRange(version, *bounds(x, version)) for x in each.held.elements]
            continue
        length = int(each.infix.split("_")[0])
        mask = str(
            ip_network(f"{ip_address('::' if version == 6 else '0.0.0.0')}/{length}").netmask
        )
        assert each.match.split()[-1] == "@{name}"
        assert length == BITS[version] or mask in each.match
        for element in each.held.elements:
            first, _ = bounds(element, version)
            held.append(AddressRange(version, first, first + (1 << (BITS[version] - length)) - 1))
    assert list(merged(held)) == found
    assert sum(one.last - one.first + 1 for one in held) == sum(
        one.last - one.first + 1 for one in found
    ), "each address is there once"


@given(st.sampled_from((4, 6)).flatmap(lambda version: ranges(version)))
def test_a_range_is_read_from_its_text(found: list[AddressRange]) -> None:
    for each in found:
        assert bounds(range_text(each), each.version) == (each.first, each.last)


def test_few_are_a_tree_and_many_are_looked_up_by_their_length() -> None:
    few = [AddressRange(4, 2 * n, 2 * n) for n in range(500)]
    (tree,) = block_sets(few, 4)
    assert tree.held.lines == ("type ipv4_addr", "flags interval")
    assert tree.match == "ip {field} @{name}"

    many = [AddressRange(4, 512 * n, 512 * n + 255) for n in range(600)]
    odd = AddressRange(4, 1 << 31, (1 << 31) + 0xABCDE)
    by_length, rest = block_sets([*many, odd], 4)
    assert by_length.infix == "24_1024_"
    assert by_length.match == "ip {field} & 255.255.255.0 == @{name}"
    assert len(by_length.held.elements) == 600
    assert by_length.held.lines == ("type ipv4_addr", "size 1024")
    assert rest.held.elements == {range_text(odd)}
