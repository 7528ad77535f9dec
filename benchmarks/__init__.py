"""Benchmarks of imageshards and comparable tools: `make bench IMAGES=DIR [COPIES=10]`."""
