"""imageshards beside its peers, in one run: `make bench IMAGES=DIR [COPIES=10]`."""
