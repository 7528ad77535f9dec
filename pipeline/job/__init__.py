"""The launching machine's part of a job: before, while and after the graph runs.

Here: checks before the start, progress, submission to a service, the reason for a failure, the
summary. Not here: the graph, and what workers do.
"""
