"""The second file of a record: where it is, and what becomes of it."""
