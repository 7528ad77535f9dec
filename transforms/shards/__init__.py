"""Shards: encode the images of one shard, write its file, and read it back.

Here: the work of one worker on one shard. Not here: the format of containers (`records`), and the
assignment of references to shards (`references`).
"""
