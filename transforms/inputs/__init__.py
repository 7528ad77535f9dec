"""Inputs: recognise what an `--input` is, list its images, and read the bytes of one.

Here: one module for each kind of input. Not here: stores of files (`storage`), and the labels,
splits and order of what is listed (`references`).
"""
