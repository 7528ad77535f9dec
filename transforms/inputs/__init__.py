"""Inputs: recognise what an `--input` is, list its references, and read the image of one.

Here: `kind` (what a kind of input does), one module for each family of kinds, and `sources` (which
kinds exist). Not here: stores of files (`storage`); labels, splits and order (`references`).
"""
