"""The digests that many images have are found in one pass, in little memory."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.transforms.references.selection import pixels


@given(
    st.lists(st.integers(0, 40), max_size=300),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
)
def test_every_frequent_digest_is_counted(numbers: list[int], counters: int, random: Random):
    digests = [b"%d" % number for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pixels, "COUNTERS", counters)
        parts: list[Counter[bytes]] = [Counter() for _ in range(4)]
        for digest in digests:
            at = random.randrange(4)
            parts[at] = pixels.with_most(parts[at] + Counter([digest]))
        random.shuffle(parts)
        found: Counter[bytes] = Counter()
        for part in parts:
            found = pixels.with_most(found + part)
    assert len(found) <= counters
    for digest, count in Counter(digests).items():
        assert count - len(digests) / (counters + 1) <= found[digest] <= count
