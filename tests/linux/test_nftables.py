"""libnftables in our process, also with tables of thousands of elements."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from limpet.base.errors import KernelError
from limpet.base.ownership import NFT_TABLE
from limpet.datapath.node.forward import HandleNftables
from limpet.linux.netlink.table_codec import OWNED, TableId, new_table
from limpet.linux.netlink.transactions import NftablesSocket
from limpet.linux.nftables import Nftables
from tests.beds.namespaces import NetnsFactory
from tests.effort import effort

LARGE = "\n".join(
    (
        f"table inet {NFT_TABLE} {{",
        "\tset peers {",
        "\t\ttypeof ip saddr",
        "\t\telements = { "
        + ", ".join(f"10.{number >> 8}.{number & 255}.1" for number in range(6000))
        + " }",
        "\t}",
        "\tchain sources {",
        "\t\tip saddr @peers accept",
        "\t}",
        "}",
        "",
    )
)


def inside(
    make_netns: NetnsFactory, make: Callable[[], Nftables], check: Callable[[Nftables], None]
) -> None:
    with make_netns().entered():
        nft = make()
        try:
            check(nft)
        finally:
            nft.close()


def test_a_large_table_counts_as_put_until_something_of_it_is_changed(
    make_netns: NetnsFactory,
) -> None:
    def check(nft: Nftables) -> None:
        nft.put_table(LARGE)
        assert nft.read_ruleset(LARGE) == LARGE
        nft.run(f"delete element inet {NFT_TABLE} peers {{ 10.0.7.1 }}", what="a peer")
        assert nft.read_ruleset(LARGE) != LARGE
        nft.put_table(LARGE)
        assert nft.read_ruleset(LARGE) == LARGE

    inside(make_netns, Nftables, check)


def test_a_table_is_read_as_it_was_put_until_others_change_it(make_netns: NetnsFactory) -> None:
    at = f"inet {NFT_TABLE}"
    sets = "\tset links {\n\t\ttype ifname\n\t}\n"
    # As nft does not print it: with the chain's priority as a number.
    chain = "\tchain sources {\n\t\ttype filter hook input priority 0;\n\t}\n"
    frame = f"table {at} {{\n{sets}{chain}}}\n"

    def check(nft: Nftables) -> None:
        assert nft.read_table() == ("", {})
        nft.put_table(frame, adding=f'add element {at} links {{ "eth0" }}\n')
        assert nft.read_table() == (frame, {"links": frozenset({"eth0"})})
        nft.run(f'add element {at} links {{ "eth1" }}', what="another link")
        assert nft.read_table() == (frame, {"links": frozenset({"eth0", "eth1"})})
        assert nft.read_ruleset(frame) != frame
        nft.run(f"add rule {at} sources drop", what="another rule")
        changed, elements = nft.read_table()
        assert elements == {"links": {"eth0", "eth1"}}
        assert changed != frame
        assert "\t\tdrop\n" in changed
        nft.run(f"delete table {at}", what="the table")
        assert nft.read_table() == ("", {})

    inside(make_netns, Nftables, check)


def let_in(counter: str, more: str = "") -> str:
    """A table that lets in by intervals, in which many may come with an element of their own."""
    held = ", ".join(f"127.0.0.1 . {8000 + 4 * each}-{8002 + 4 * each}" for each in range(500))
    return f"""table inet {NFT_TABLE} {{
\tcounter {counter} {{
\t}}

\tset peers {{
\t\ttype ipv4_addr . inet_service
\t\tflags interval
\t\telements = {{ {held}{more} }}
\t}}

\tchain sources {{
\t\ttype filter hook input priority 0; policy accept;
\t\tip saddr . udp dport @peers accept
\t\tudp dport 8000-12000 counter name "{counter}" drop
\t}}
}}
"""


def test_no_packet_is_lost_while_a_table_is_put_in_place_of_another(
    make_netns: NetnsFactory,
) -> None:
    """The kernel fills sets of intervals after it has begun to ask the rules that are put with
    them."""
    lost: list[int] = []
    is_over = threading.Event()

    def send(sender: socket.socket) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            sender.send(b"%d" % number)
            try:
                while sender.recv(16) != b"%d" % number:
                    pass  # what had been given up
            except TimeoutError:
                lost.append(number)

    def check(nft: Nftables) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(5)
            sender.bind(("127.0.0.1", 8001))
            sender.connect(("127.0.0.1", 8001))
            thread = threading.Thread(target=send, args=(sender,))
            thread.start()
            try:
                for number in range(effort(80, 400)):
                    nft.put_table(let_in(f"refused{number % 2}"))
                nft.put_table("")
                nft.put_table(let_in("refused"))
            finally:
                is_over.set()
                thread.join()
        assert lost == []
        assert nft.read_counter("refused") == 0

    inside(make_netns, Nftables, check)


def test_of_a_table_that_holds_what_is_not_wanted_nothing_stays(make_netns: NetnsFactory) -> None:
    def check(nft: Nftables) -> None:
        for before, after in (
            (let_in("refused", ", 127.0.0.2 . 9000"), let_in("refused")),
            (let_in("refused").replace("udp", "tcp"), let_in("refused")),
            (
                let_in("refused").replace("\t\tflags interval\n", "").split("\t\telements")[0]
                + "\t}\n}\n",
                let_in("refused"),
            ),
        ):
            nft.put_table(before)
            nft.put_table(after)
            assert nft.read_ruleset(after) == after
            listed = nft.list_table()
            nft.put_table("")
            nft.put_table(after)
            assert nft.list_table() == listed

    inside(make_netns, Nftables, check)


@pytest.mark.parametrize(
    "done",
    [
        "add table {at} {{ flags dormant; }}",
        "add ct timeout {at} tt {{ protocol tcp; l3proto ip; }}",
    ],
    ids=["asleep", "another object"],
)
def test_what_others_did_to_a_table_is_gone_once_it_is_put(
    make_netns: NetnsFactory, done: str
) -> None:
    def check(nft: Nftables) -> None:
        wanted = let_in("refused")
        nft.put_table(wanted)
        listed = nft.list_table()
        nft.run(done.format(at=f"inet {NFT_TABLE}"), what="of somebody else")
        assert nft.list_table() != listed
        assert nft.keep(wanted)
        assert nft.list_table() == listed

    inside(make_netns, Nftables, check)


def test_a_large_table_does_not_change_how_later_ones_are_printed(make_netns: NetnsFactory) -> None:
    def check(nft: Nftables) -> None:
        nft.put_table(LARGE)
        for _ in range(2):
            listed = nft.run(f"list table inet {NFT_TABLE}", what="the table")
            assert "ip saddr @peers accept # handle" in listed

    inside(make_netns, HandleNftables, check)


def test_it_takes_a_socket_that_was_given_whatever_other_threads_open(
    make_netns: NetnsFactory,
) -> None:
    """Its own is told from theirs, and none of theirs is lost."""
    ended = threading.Event()
    lost: list[str] = []

    def open_and_close() -> None:
        while not ended.is_set():
            with NftablesSocket() as theirs, open("/dev/null", "rb") as other:
                if not theirs.number or other.read(1):
                    lost.append("another's")
                theirs.commit([])

    with make_netns().entered(), NftablesSocket() as netlink:
        table = TableId("inet", NFT_TABLE)
        netlink.commit([new_table(table, OWNED)])
        threads = [threading.Thread(target=open_and_close) for _ in range(2)]
        for each in threads:
            each.start()
        try:
            for number in range(effort(50, 500)):
                nft = Nftables(netlink=netlink)
                assert nft.shares
                nft.run(f"add chain inet {NFT_TABLE} c{number}", what="a chain")
                nft.close()
        finally:
            ended.set()
            for each in threads:
                each.join()
        other = Nftables()
        with pytest.raises(KernelError, match="not permitted"):
            other.run(f"add chain inet {NFT_TABLE} d", what="a chain")
        other.close()
    assert lost == []


def test_who_made_it_alone_asks(make_netns: NetnsFactory) -> None:
    """libnftnl ends the process that reads the answer to another question."""
    with make_netns().entered(), ThreadPoolExecutor(1) as pool:
        nft = Nftables()
        with pytest.raises(RuntimeError, match="another thread"):
            pool.submit(nft.list_table).result()
        assert nft.list_table() is None
        nft.close()


def test_once_closed_it_is_asked_nothing_and_closed_no_more(make_netns: NetnsFactory) -> None:
    with make_netns().entered():
        nft = Nftables()
        nft.put_table(f"table inet {NFT_TABLE} {{\n}}\n")
        nft.close()
        nft.close()
        for ask in (nft.list_table, lambda: nft.run("list ruleset", what="all")):
            with pytest.raises(RuntimeError, match="asked after it was closed"):
                ask()
