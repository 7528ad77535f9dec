"""Inputs: recognize what an `--input` is, list its references, and read the image of one.

Here: `kind` (the interface of a kind of input), one module for each family of kinds, and `sources`
(`identify`). Not here: stores of files (`storage`); labels, splits and order (`references`).
"""
