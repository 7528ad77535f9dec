"""The local runner of a command encodes groups piece by piece, and sends many messages."""

import subprocess
import sys

import pytest
from apache_beam.coders import coders
from apache_beam.runners.portability.fn_api_runner.execution import GroupingBuffer
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.window import GlobalWindows

from imageshards.pipeline.job.local_memory import PiecewiseBuffer

KEY, VALUE, WINDOW = coders.VarIntCoder(), coders.BytesCoder(), coders.GlobalWindowCoder()
PAIRS = coders.WindowedValueCoder(coders.TupleCoder([KEY, VALUE]), WINDOW)
GROUPS = coders.WindowedValueCoder(coders.TupleCoder([KEY, coders.IterableCoder(VALUE)]), WINDOW)


def filled(kind: type[GroupingBuffer], keys: int) -> GroupingBuffer:
    """A buffer with two values for each key."""
    buffer = kind(PAIRS, GROUPS, Windowing(GlobalWindows()))
    for number in range(2 * keys):
        pair = (number % keys, b"%d" % number)
        stream = coders.coder_impl.create_OutputStream()
        PAIRS.get_impl().encode_to_stream(GlobalWindows.windowed_value(pair), stream, True)
        buffer.append(stream.get())
    return buffer


def groups(encoded: bytes) -> dict[int, list[bytes]]:
    """Key -> values of encoded groups."""
    found = {}
    stream = coders.coder_impl.create_InputStream(encoded)
    while stream.size():
        key, values = GROUPS.get_impl().decode_from_stream(stream, True).value
        found[key] = list(values)
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("keys", [0, 1, 7, 3000])
def test_the_pieces_of_a_buffer_have_the_groups_of_beams_own(keys: int, workers: int):
    expected = filled(GroupingBuffer, keys).partition(workers)
    buffer = filled(PiecewiseBuffer, keys)
    found = buffer.partition(workers)
    assert buffer.partition(workers) is found
    assert len(found) == workers
    pieces = [groups(piece) for part in found for piece in part]
    assert max(map(len, pieces), default=0) <= 6  # of 3,000
    merged = {key: values for piece in pieces for key, values in piece.items()}
    assert sum(map(len, pieces)) == len(merged) == keys
    assert merged == {key: values for part in expected for key, values in groups(part[0]).items()}


def test_a_command_sends_messages_of_ten_megabytes():
    code = """if True:
        from imageshards.launch.load import load_beam
        load_beam(lean=True)
        import apache_beam as beam
        from apache_beam.runners.worker import data_plane

        sizes = []
        flush = data_plane.SizeBasedBufferingClosableOutputStream.flush
        def measured(stream):
            sizes.append(stream.size())
            flush(stream)
        data_plane.SizeBasedBufferingClosableOutputStream.flush = measured
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            values = pipeline | beam.Create(range(64)) | beam.Map(lambda n: (n, bytes(1 << 20)))
            sums = values | beam.GroupByKey() | beam.MapTuple(lambda _, found: len(*found))
            _ = sums | beam.CombineGlobally(sum) | beam.Map(print)
        print(max(sizes), sum(sizes) > 64 << 20)
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, largest = done.stdout.splitlines()
    assert int(total) == 64 << 20
    size, all_flushed = largest.split()
    assert int(size) < 12 << 20
    assert all_flushed == "True"
