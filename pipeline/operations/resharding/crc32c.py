"""The CRC-32C of a concatenation, from those of its parts: arithmetic modulo a polynomial. Pure.

Appending n bytes to a text multiplies its CRC by x^(8n) modulo the polynomial P, and adds the CRC
of the n bytes; the ones with which a CRC begins and ends cancel out. zlib's crc32_combine does so
too. The coefficients of polynomials are in reflected order: bit 31 is that of x^0.
"""

from __future__ import annotations

from functools import cache

_P = 0x82F63B78
_ONE, _X = 1 << 31, 1 << 30


def combine(first: int, second: int, size: int) -> int:
    """Returns the CRC-32C of two texts in sequence.

    Args:
      first: the CRC-32C of the first.
      second: the CRC-32C of the second.
      size: the number of bytes of the second.

    >>> import google_crc32c
    >>> hex(combine(google_crc32c.value(b"data "), google_crc32c.value(b"set"), 3))
    '0x78050139'
    >>> hex(google_crc32c.value(b"data set"))
    '0x78050139'
    """
    return _multiply(_power(8 * size), first) ^ second


def _multiply(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_P if b & 1 else 0)
    return product


@cache
def _powers() -> list[int]:
    """Returns x^(2^k) modulo P for k from 0 to 66: enough for files of 2^63 bytes."""
    powers = [_X]
    for _ in range(66):
        powers.append(_multiply(powers[-1], powers[-1]))
    return powers


def _power(n: int) -> int:
    """Returns x^n modulo P."""
    result = _ONE
    for power in _powers():
        if not n:
            break
        if n & 1:
            result = _multiply(result, power)
        n >>= 1
    return result
