"""Image bytes: recognise, check, decode, convert and resize them.

Here: functions from bytes to bytes, without I/O. Not here: where the bytes come from (`inputs`,
`storage`) and what a record says about them (`records`).
"""
