"""Builds on Google Cloud Dataflow.

Here: Beam's arguments for the job, the package for its workers, the image and the Flex Template.
Not here: running the job (`launch.build` and `pipeline.run`).
"""
