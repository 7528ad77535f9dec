"""Detects, validates, decodes, converts and resizes images.

Here: pure functions on the bytes of one image, without I/O.
Not here: reading the bytes (`inputs`, `storage`) and building records from them (`records`).
"""
