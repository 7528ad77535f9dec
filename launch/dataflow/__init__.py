"""Builds on Google Cloud Dataflow.

Here: Beam's arguments for the job, the package for its workers, the image and the Flex Template,
and an estimate of the costs. Not here: running the job (`launch.build` and `pipeline.run`).
"""
