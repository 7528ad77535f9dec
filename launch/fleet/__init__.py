"""Fleets of workers: how long a build takes on one, what it costs, and what limits it.

Here: the constants (`rates`), the model (`stages`), the command `imageshards advise --images`
(`advise`), and the tables of launch/dataflow (`scale`). Not here: running a build.
"""
