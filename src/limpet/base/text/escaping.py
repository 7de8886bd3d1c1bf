"""What others wrote, as it may stand in a line of a log or of a terminal. Pure.

A name, a label, a reason or an error of a server moves no cursor, ends no line, clears no screen
and turns no direction of writing: what cannot be seen is written as its number.
"""

from __future__ import annotations

from unicodedata import combining

from limpet.base.bounds.words import MARKS

_UNSEEN = frozenset(
    map(
        chr,
        (
            *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
"""Letters and marks that take no ink, which `str.isprintable` takes for printable.

Source: Unicode, DerivedCoreProperties.txt, Default_Ignorable_Code_Point; and braille's blank.
"""


def escaped(text: str, keep: str = "") -> str:
    """`text` with what cannot be seen as `\\n`, `\\x1b`, `\\u202e`; characters of `keep` stay.

    A backslash stays as it is: this is for eyes, not for reading back.
    """
    if text.isascii() and text.isprintable():
        return text
    found, marks = [], 0
    for character in text:
        marks = marks + 1 if combining(character) else 0
        if character in keep or (
            character.isprintable() and character not in _UNSEEN and marks <= MARKS.most
        ):
            found.append(character)
        else:
            found.append(_as_number(character))
    return "".join(found)


def _as_number(character: str) -> str:
    written = character.encode("unicode_escape").decode()
    if written != character:
        return written
    return f"\\u{ord(character):04x}"


def shortened(text: str, most: int) -> str:
    """At most `most` characters of `text`, and then how many more there were."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters)"


def shortened_within(text: str, most: int) -> str:
    """The beginning and the end of `text`, `most` characters in all: a traceback says at its end
    what went wrong."""
    if len(text) <= most:
        return text
    half = most // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}… ({left_out} characters left out) …{text[-half:]}"
