"""Queries and answers as bytes: what each of thousands of messages in a second needs, and no more.

A library (dnspython) makes a cluster name's answer once; from then on it is these bytes, put behind
each asker's own header and question. Upstreams' answers are looked through, record by record, and
passed on as they came. Source: RFC 1035 section 4, RFC 6891 (EDNS), RFC 2308 (negative answers).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limpet.base.bounds.servers import DNS_NO_TTL_S, DNS_RECORDS, DNS_TTL_S

A, NS, CNAME, SOA, PTR, TXT, AAAA, SRV, OPT, ANY = 1, 2, 5, 6, 12, 16, 28, 33, 41, 255
HINFO = 13
IN = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16

QR, AA, TC, RD, RA, AD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
_OPCODE, _RCODE = 0x7800, 0x000F
DO = 0x8000
HEADER_BYTES = 12
LARGEST_UDP = 1232
"""What gets through everywhere without fragments. Source: DNS Flag Day 2020."""
PLAIN_UDP = 512
"""Without EDNS. Source: RFC 1035 section 2.3.4."""
LARGEST_TCP = 65535
_LONGEST_NAME, _LONGEST_LABEL = 255, 63
POINTER, FARTHEST = 0xC000, 0x3FFF
_NAMES_IN = {
    **dict.fromkeys((NS, CNAME, PTR, 3, 4, 7, 8, 9, 39), (0, 1)),  # MD, MF, MB, MG, MR, DNAME
    **dict.fromkeys((SOA, 14, 17), (0, 2)),  # MINFO, RP
    **dict.fromkeys((15, 18, 21, 36), (2, 1)),  # MX, AFSDB, RT, KX
    SRV: (6, 1),
}
"""How many bytes stand before names in records of these types, which may be compressed, and how
many names there are. Source: RFC 1035 section 3.3, RFC 3597 section 4."""
_HEADER = struct.Struct("!HHHHHH")
_SHORT = struct.Struct("!H")
_SHORTS = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_TTL = struct.Struct("!I")


class QueryRefused(Exception):
    """A query that gets an error for an answer: `response`; None: it gets none at all."""

    def __init__(self, response: bytes | None) -> None:
        super().__init__("no query that can be answered")
        self.response = response


@dataclass(frozen=True, slots=True)
class Query:
    """One question, and how the answer has to look."""

    number: int
    flags: int
    question: bytes
    """Name, type and class as they were asked: an answer repeats the name's capitals."""
    size: int
    """Bytes of the largest answer by UDP."""
    has_edns: bool
    wants_dnssec: bool

    @property
    def type(self) -> int:
        return int.from_bytes(self.question[-4:-2], "big")

    @property
    def is_internet(self) -> bool:
        return self.question[-2:] == b"\0\1"

    @property
    def name(self) -> tuple[bytes, ...]:
        """Its labels in small letters; none of the root."""
        return split_name(self.question)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """A response without what each asker has of its own: number, question's capitals, EDNS.

    `records` follow a question of the same length, which their compressed names point into.
    """

    flags: int
    """AA, AD and the code."""
    counts: tuple[int, int, int] = (0, 0, 0)
    """Records that answer, of authorities, and further ones."""
    records: bytes = b""
    ttls: tuple[int, ...] = ()
    """Where in `records` a TTL is."""
    ttl_s: int = 0
    """For so long it holds; 0: for nobody else."""

    @property
    def code(self) -> int:
        return self.flags & _RCODE


def split_name(wire: bytes) -> tuple[bytes, ...]:
    """Labels in small letters of a name that is not compressed."""
    labels, at = [], 0
    while length := wire[at]:
        labels.append(wire[at + 1 : at + 1 + length].lower())
        at += 1 + length
    return tuple(labels)


def join_name(labels: tuple[bytes, ...]) -> bytes:
    """Raises: ValueError where no message can have such a name."""
    if sum(map(len, labels)) + len(labels) >= _LONGEST_NAME or not all(
        0 < len(label) <= _LONGEST_LABEL for label in labels
    ):
        raise ValueError(f"{text_of(labels)} is no name")
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def text_of(labels: tuple[bytes, ...]) -> str:
    """As a person writes it, without the dot at its end; what is not printable is escaped."""
    return ".".join(
        "".join(chr(c) if 0x21 <= c <= 0x7E and c not in b".\\" else f"\\{c:03}" for c in label)
        for label in labels
    )


# Queries


def parse_query(message: bytes) -> Query:
    """Raises: QueryRefused."""
    if len(message) < HEADER_BYTES:
        raise QueryRefused(None)
    number, flags, questions, answers, authorities, further = _HEADER.unpack_from(message)
    if flags & QR:
        raise QueryRefused(None)
    if flags & _OPCODE:
        raise QueryRefused(_error(number, flags, NOTIMP))
    if (questions, answers, authorities) != (1, 0, 0) or further > 1:
        raise QueryRefused(_error(number, flags, FORMERR))
    try:
        end = _end_of_plain_name(message, HEADER_BYTES) + 4
        if end > len(message):
            raise ValueError("the question has no end")
        size, has_edns, wants_dnssec = PLAIN_UDP, False, False
        question = message[HEADER_BYTES:end]
        if further:
            version, size, wants_dnssec = _parse_edns(message, end)
            if version:
                raise QueryRefused(
                    _HEADER.pack(number, QR | RA | flags & (RD | CD), 1, 0, 0, 1)
                    + question
                    + _edns(BADVERS, wants_dnssec)
                )
            size, has_edns = min(max(size, PLAIN_UDP), LARGEST_UDP), True
        elif end < len(message):
            raise ValueError("something behind the question")
    except (ValueError, IndexError, struct.error):
        raise QueryRefused(_error(number, flags, FORMERR)) from None
    return Query(number, flags, question, size, has_edns, wants_dnssec)


def write_query(number: int, question: bytes, flags: int, *, dnssec: bool, edns: bool) -> bytes:
    """As an upstream gets it."""
    head = _HEADER.pack(number, RD | flags & (CD | AD), 1, 0, 0, int(edns)) + question
    return head + _edns(NOERROR, dnssec) if edns else head


def _end_of_plain_name(message: bytes, at: int) -> int:
    start = at
    while length := message[at]:
        if length > _LONGEST_LABEL:
            raise ValueError("a compressed or reserved label in a question")
        at += 1 + length
    if at + 1 - start > _LONGEST_NAME:
        raise ValueError("a name that is too long")
    return at + 1


def _parse_edns(message: bytes, at: int) -> tuple[int, int, bool]:
    """Version, size, DO."""
    kind, size, more, length = _RECORD.unpack_from(message, at + 1)
    if message[at] != 0 or kind != OPT or at + 11 + length != len(message):
        raise ValueError("something other than EDNS in a query")
    return more >> 16 & 0xFF, size, bool(more & DO)


def _edns(code: int, wants_dnssec: bool) -> bytes:
    more = code >> 4 << 24 | (DO if wants_dnssec else 0)
    return b"\0" + _RECORD.pack(OPT, LARGEST_UDP, more, 0)


def _error(number: int, flags: int, code: int) -> bytes:
    return _HEADER.pack(number, QR | flags & (_OPCODE | RD) | code, 0, 0, 0, 0)


# Answers


def write_response(
    query: Query, answer: DnsAnswer, *, size: int, age_s: int = 0, ttl_s: int | None = None
) -> bytes:
    """The answer as this query gets it, of at most `size` bytes: what is longer is cut (TC), and
    asked for again by TCP; who cannot do that has at least those of the records that fit. TTLs are
    less by `age_s`, or all `ttl_s`."""
    flags = QR | RA | answer.flags | query.flags & (RD | CD)
    if not (query.wants_dnssec or query.flags & AD):
        flags &= ~AD
    end = _edns(NOERROR, query.wants_dnssec) if query.has_edns else b""
    records, counts = answer.records, answer.counts
    room = size - HEADER_BYTES - len(query.question) - len(end)
    if len(records) > room:
        message = bytes(HEADER_BYTES) + query.question + records
        records, counts, is_whole = _cut(message, len(message) - len(records), room, counts)
        flags |= 0 if is_whole else TC
    if ttl_s is not None:
        records = _with_ttls(records, answer.ttls, lambda _: ttl_s)
    elif age_s > 0:
        records = _with_ttls(records, answer.ttls, lambda own_s: max(own_s - age_s, 0))
    answers, authorities, further = counts
    head = _HEADER.pack(query.number, flags, 1, answers, authorities, further + int(query.has_edns))
    return head + query.question + records + end


def _cut(
    message: bytes, at: int, room: int, counts: tuple[int, int, int]
) -> tuple[bytes, tuple[int, int, int], bool]:
    """The records from `at` on that have room, how many of each section these are, and whether that
    is all that was asked for: addresses of what is named need not come along (RFC 2181 section 9).
    """
    start, kept = at, [0, 0, 0]
    for section, count in enumerate(counts):
        for _ in range(count):
            end = _end_of_name(message, at)
            end += 10 + int(_RECORD.unpack_from(message, end)[3])
            if end - start > room:
                return message[start:at], (kept[0], kept[1], kept[2]), section == 2
            at = end
            kept[section] += 1
    return message[start:at], counts, True


def _with_ttls(records: bytes, ttls: Sequence[int], after: Callable[[int], int]) -> bytes:
    """`ttls`: in order; behind the records are some that had no room. `after`: what one becomes."""
    changed = bytearray(records)
    for at in ttls:
        if at >= len(records):
            break
        _TTL.pack_into(changed, at, after(_TTL.unpack_from(records, at)[0]))
    return bytes(changed)


def folded(question: bytes) -> bytes:
    """The same for questions that differ in the capitals of their names alone. Types from 65 to 90
    look like letters, too. Source: RFC 1035 section 4.1.2, RFC 4343 section 3."""
    return question[:-4].lower() + question[-4:]


def parse_response(message: bytes, number: int, question: bytes) -> DnsAnswer | None:
    """What an upstream answers to that question; None: this is no answer to it.

    TC is in its flags when it was cut. Raises: ValueError for nonsense.
    """
    start = HEADER_BYTES + len(question)
    if len(message) < start:
        # Some who refuse leave the question out.
        if len(message) == HEADER_BYTES and message[:2] == number.to_bytes(2, "big"):
            flags = int.from_bytes(message[2:4], "big")
            if flags & QR and flags & _RCODE:
                return DnsAnswer(flags & _RCODE)
        return None
    found, flags, questions, *counts = _HEADER.unpack_from(message)
    if found != number or not flags & QR or flags & _OPCODE or questions != 1:
        return None
    if folded(message[HEADER_BYTES:start]) != folded(question):
        return None
    if flags & TC:
        return DnsAnswer(flags & (TC | _RCODE))
    try:
        return _look_through(message, start, flags, counts, _type_of(question))
    except (IndexError, struct.error):
        raise ValueError("records end before their end") from None


def _look_through(
    message: bytes, start: int, flags: int, counts: list[int], asked: int
) -> DnsAnswer:
    at, ttls, held_s = start, [], []
    negative_s, is_answered = None, False
    kept = [0, 0, 0]
    for section, count in enumerate(counts):
        for _ in range(min(count, DNS_RECORDS.most - sum(kept))):
            begin, at = at, _end_of_name(message, at)
            kind, _class, ttl_s, length = _RECORD.unpack_from(message, at)
            if kind == OPT:
                if ttl_s >> 24:
                    return DnsAnswer(SERVFAIL)  # an extended code: all of them say that it failed
                at = begin
                break  # what stands behind it, a signature of the message, is of that hop
            ttls.append(at + 4 - start)
            at += 10 + length
            if at > len(message):
                raise ValueError("a record that is longer than its message")
            ttl_s = 0 if ttl_s >> 31 else min(ttl_s, DNS_TTL_S.most)  # RFC 2181 section 8
            if section == 0:
                held_s.append(ttl_s)
                is_answered = is_answered or asked in (kind, ANY)
            elif section == 1 and kind == SOA and length >= 20:
                negative_s = min(ttl_s, _TTL.unpack_from(message, at - 4)[0], DNS_TTL_S.most)
            kept[section] += 1
    records, holds_s = message[start:at], 0  # no SOA, no remembering of a no
    if flags & _RCODE == NOERROR and is_answered:
        holds_s = min(held_s)
    elif negative_s is not None:
        # Who is told a no keeps it as its records say. Source: RFC 2308 section 5; 2.2: of aliases.
        holds_s = min([*held_s, negative_s, DNS_NO_TTL_S.most])
        records = _with_ttls(records, ttls, lambda own_s: min(own_s, holds_s))
    return DnsAnswer(
        flags & (AD | _RCODE), (kept[0], kept[1], kept[2]), records, tuple(ttls), holds_s
    )


def _end_of_name(message: bytes | bytearray, at: int) -> int:
    while length := message[at]:
        if length >= 0xC0:
            if (length & 0x3F) << 8 | message[at + 1] >= at:
                raise ValueError("a name that points forward")
            return at + 2
        if length > _LONGEST_LABEL:
            raise ValueError("a reserved label")
        at += 1 + length
    return at + 1


def moved_behind(
    answer: DnsAnswer, question_bytes: int, most_bytes: int, *, to: int, name_at: int
) -> DnsAnswer:
    """The records, without further ones, for a message in which `to` bytes stand between its header
    and them, and the name that was asked for at `name_at`; as many of them as have room in
    `most_bytes` with header and question.

    Raises: ValueError, IndexError, struct.error for what is not as it should be, or points farther
    than a pointer can.
    """
    start = HEADER_BYTES + question_bytes
    message = bytes(start) + answer.records
    records, counts, _ = _cut(message, start, most_bytes - start, (*answer.counts[:2], 0))
    moved = bytearray(bytes(start) + records)

    def move(at: int) -> int:
        """The end of a name, whose pointer leads to the same name again."""
        end = _end_of_name(moved, at)
        if (pointer := _pointer_in(moved, at)) is not None:
            points = _SHORT.unpack_from(moved, pointer)[0] & FARTHEST
            if HEADER_BYTES <= points < start - 4:
                points += name_at - HEADER_BYTES
            else:
                points += HEADER_BYTES + to - start if points >= start else FARTHEST + 1
            if points > FARTHEST:
                raise ValueError("a name that points to none, or farther than it can")
            _SHORT.pack_into(moved, pointer, POINTER | points)
        return end

    at, ttls = start, []
    for _ in range(sum(counts)):
        at = move(at)
        kind, _class, _ttl_s, length = _RECORD.unpack_from(moved, at)
        ttls.append(at + 4 - start)
        at += 10 + length
        before, names = _NAMES_IN.get(kind, (0, 0))
        name = at - length + before
        for _ in range(names):
            name = move(name)
        if name > at:
            raise ValueError("a name that is longer than its record")
    return DnsAnswer(answer.flags, counts, bytes(moved[start:]), tuple(ttls))


def _pointer_in(message: bytes | bytearray, at: int) -> int | None:
    """Where the pointer is with which the name ends; None: it ends without one."""
    while (length := message[at]) and length <= _LONGEST_LABEL:
        at += 1 + length
    return at if length else None


def _type_of(question: bytes) -> int:
    return int(_SHORTS.unpack_from(question, len(question) - 4)[0])


def find_ttls(message: bytes, start: int, count: int) -> tuple[int, ...]:
    """Where the TTLs of records that we have made are, from `start` on."""
    at, found = start, []
    for _ in range(count):
        at = _end_of_name(message, at)
        found.append(at + 4 - start)
        at += 10 + int(_RECORD.unpack_from(message, at)[3])
    return tuple(found)
