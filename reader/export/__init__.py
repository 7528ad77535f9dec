"""Writes the annotations of a data set in the formats of other tools."""
