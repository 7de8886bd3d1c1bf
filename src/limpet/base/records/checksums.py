"""CRC-32 of any part of some bytes, after one walk over all of them. Pure.

Checksums are polynomials over GF(2): that of A and B together is that of A, moved up by the length
of B, plus that of B. So a part's is the difference of two beginnings'. Source: zlib, crc32_combine.
"""

from __future__ import annotations

from binascii import crc32

_POLYNOMIAL = 0xEDB88320
_EVERY_BYTES = 256
"""Between two beginnings whose checksums are kept."""
_ONE = 1 << 31
"""x^0: bits are stored the other way round."""


def _times(a: int, b: int) -> int:
    """The product of two polynomials, modulo CRC-32's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


def _powers() -> list[list[int]]:
    """Row n, column m: x^(8 m 256^n), which moves a checksum up by m 256^n bytes."""
    rows, step = [], _ONE >> 8
    for _ in range(4):
        row = [_ONE]
        for _ in range(256):
            row.append(_times(row[-1], step))
        step = row.pop()
        rows.append(row)
    return rows


class PartialChecksums:
    """CRC-32 of parts of `data`; a question costs the same for a short part and a long one."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._powers = _powers()
        self._beginnings = [0]
        for at in range(0, len(data), _EVERY_BYTES):
            self._beginnings.append(crc32(data[at : at + _EVERY_BYTES], self._beginnings[-1]))

    def of(self, start: int, end: int, before: int = 0) -> int:
        """`crc32(data[start:end], before)`."""
        moved, length, row = before ^ self._beginning(start), end - start, 0
        while length:
            if length & 255:
                moved = _times(self._powers[row][length & 255], moved)
            length, row = length >> 8, row + 1
        return moved ^ self._beginning(end)

    def _beginning(self, end: int) -> int:
        whole = end // _EVERY_BYTES
        return crc32(self._data[whole * _EVERY_BYTES : end], self._beginnings[whole])
