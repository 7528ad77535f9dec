"""References in files: two runs of a build do not disturb each other in silence."""

from pathlib import Path

import pytest

from imageshards.transforms.elements import OutputTaken
from imageshards.transforms.failure import Failures
from imageshards.transforms.references.batch import RefBatch
from imageshards.transforms.references.stored import StoredRefs
from imageshards.transforms.shards.layout import Layout


def test_another_run_does_not_replace_stored_references(tmp_path: Path):
    batches = [RefBatch.listed(["a.jpg", "b.jpg"], [0, 0], sizes) for sizes in ([1, 2], [1, 3])]
    files = [
        StoredRefs.store(batch, f"{tmp_path}/piece", str(tmp_path))
        for batch in (*batches, batches[0])
    ]
    assert [file.load().sizes.tolist() for file in files] == [[1, 2], [1, 3], [1, 2]]
    assert files[0] == files[2]
    assert len(list(tmp_path.iterdir())) == 2


def test_deleted_references_are_no_failure_of_the_output(tmp_path: Path):
    batch = RefBatch.listed(["a.jpg"], [0])
    stored = StoredRefs.store(batch, f"{tmp_path}/piece", str(tmp_path))
    Path(stored.uri).unlink()
    failures = Failures(Layout(str(tmp_path)), job="1", plan="digest")
    with pytest.raises(OutputTaken, match="another build writes here"), failures.recording():
        stored.load()
    assert not list(tmp_path.rglob("*.json"))
