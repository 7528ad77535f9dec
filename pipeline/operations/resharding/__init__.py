"""How `reshard` copies records into new shards, without decoding them.

A data set that imageshards built: `target` says which shards to write, `pieces` which records each
of them takes, `write` writes one, `dataset` does it on many workers, and `metadata` describes the
result. Record files of other programs: `files`. Both claim the output folder with `claim`.
"""
