"""The PTransforms of a build, one module each, and the pure packages below them.

Here: PTransforms, which do not import each other; `elements`, the values that flow between them;
and `extras`, the optional packages. Not here: options, the graph and metadata of a whole build,
which are in `pipeline`. This file imports nothing, because worker processes that need no Beam are
forked from a server that imports it.
"""
