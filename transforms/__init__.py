"""The PTransforms of a build, one module each, and the pure packages below them.

Here: PTransforms, and `elements`, the values that flow between them. They do not import each
other. Not here: options, the graph and metadata of a whole build, which are in `pipeline`.
This file imports nothing, because worker processes that need no Beam are forked from a server
that imports it.
"""
