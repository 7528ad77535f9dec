"""Builds on Google Cloud Dataflow: the job, its worker package, its image and Flex Template."""
