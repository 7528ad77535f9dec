"""How `verify` checks a data set.

`checks` divides a data set into parts and checks one: a shard (`shards`), whose records `record`
checks in the threads of `decoders`, or all other files (`metadata`). The problems that are found
(`problems`) add up to findings (`findings`), and those to the verdict (`verdict`).
"""
