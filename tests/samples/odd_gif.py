"""Odd GIFs."""

from __future__ import annotations

from collections.abc import Iterator

import hand_gif
from odd import DAMAGED, Odd
from pictures import HEIGHT, WIDTH


def gifs() -> Iterator[tuple[str, Odd]]:
    whole = hand_gif.frame()
    own = hand_gif.frame(colours=hand_gif.COLOURS)
    small = hand_gif.frame((9, 7), (3, 2))
    comment = b"!\xfe\3abc\0"
    for name, data in {
        "87a": hand_gif.gif([whole], version=b"87a"),
        "own-colours": hand_gif.gif([own], colours=b""),
        "interlaced": hand_gif.gif([hand_gif.frame(flags=64)]),
        "comment": hand_gif.gif([comment, whole, comment]),
        "control": hand_gif.gif([hand_gif.control(), whole]),
        "transparent": hand_gif.gif([hand_gif.control(5), whole]),
        "two": hand_gif.gif([whole, own]),
        "small-second": hand_gif.gif([whole, hand_gif.control(3, disposal=2), small]),
        "disposal3": hand_gif.gif([hand_gif.control(disposal=3), whole, small, small]),
        "loop": hand_gif.gif([b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0", whole, whole]),
        "no-end-code": hand_gif.gif(
            [hand_gif.frame(data=hand_gif.pixels(WIDTH * HEIGHT, end=False))]
        ),
        "plain-text": hand_gif.gif([b"!\1\x0c" + bytes(12) + b"\2hi\0", whole]),
        "bytes-after-end": hand_gif.gif([whole], after=b"\0" * 20),
        "1x1": hand_gif.gif([hand_gif.frame((1, 1))], (1, 1)),
        "4000x1": hand_gif.gif([hand_gif.frame((4000, 1))], (4000, 1)),
        "many-frames": hand_gif.gif([hand_gif.control(), whole] * 30),
        "small-first": hand_gif.gif([small]),
        "large-second": hand_gif.gif([whole, hand_gif.frame((60, 60))]),
        "no-colours": hand_gif.gif([whole], colours=b""),
        "no-colours-in-second": hand_gif.gif([own, whole], colours=b""),
    }.items():
        yield f"{name}.gif", Odd(data)
    empty = bytes([hand_gif.CODE_SIZE, 0])
    few = hand_gif.pixels(WIDTH * HEIGHT // 2)
    for name, data in {
        "no-sub-blocks": hand_gif.gif([hand_gif.frame(data=empty)]),
        "no-sub-blocks-in-second": hand_gif.gif([whole, hand_gif.frame(data=empty)]),
        "few-pixels": hand_gif.gif([hand_gif.frame(data=few)]),
        "few-pixels-in-second": hand_gif.gif([whole, hand_gif.frame(data=few)]),
        "code-size-12": hand_gif.gif([hand_gif.frame(data=b"\x0c\1\1\0")]),
        "no-frame": hand_gif.gif([comment]),
        "bytes-between-blocks": hand_gif.gif([whole, b"abc", whole]),
        "index-without-colour": hand_gif.gif(
            [hand_gif.frame()[:9] + b"\x80" + bytes(6) + hand_gif.pixels(WIDTH * HEIGHT)]
        ),
        "no-trailer": hand_gif.gif([whole])[:-1],
        "frame-without-pixels": hand_gif.gif([hand_gif.frame((0, 0), data=empty)]),
        "canvas0": hand_gif.gif([whole], (0, 0)),
    }.items():
        yield f"{name}.gif", Odd(data, DAMAGED)
