"""A whole build: options, the Beam graph, what is written at its end, and its progress.

Here: the wiring of PTransforms, and operations on finished data sets (publish, reshard). Not
here: the steps themselves (`transforms`), and command lines (`launch`).
"""
