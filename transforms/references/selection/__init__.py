"""Which of the listed references a data set takes: by columns, lists, numbers and pixels.

Here: functions on tables of references. Not here: the PTransforms that apply them to all references
(`choose`, `exclude`, `dedupe`).
"""
