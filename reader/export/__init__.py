"""Writes what a data set holds in formats of others."""
