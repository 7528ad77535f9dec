"""A job, as the machine that launches it sees it: before, while and after the graph runs.

Here: checks before it starts, progress, submission to a service, the reason of a failure, the
summary. Not here: the graph, and what workers do.
"""
