"""The Grain pipeline of `reader.grain`. Only `batches` imports Grain; `pipeline` imports it late.

Not here: decoding (`reader.elements`), and the order of the records (`reader.ordering`).
"""
