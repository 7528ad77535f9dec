"""Operations on whole data sets and inputs, divided into parts: verify, reshard, fingerprint.

`operation.py` has their interface, and runs them in this process or on a runner of Beam. Not here:
building (`pipeline`), and operations on a few small files (`pipeline.publish`).
"""
