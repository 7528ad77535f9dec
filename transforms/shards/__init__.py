"""Shards: encode the images of one shard, write its file, and read it back.

Here: what one worker does for one shard. Not here: the container's format (`records`), and which
references belong to a shard (`references`).
"""
