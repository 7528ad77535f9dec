"""The training side: verify and inspect what was built."""
