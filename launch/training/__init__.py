"""Example trainings in Keras and JAX: command lines, and loops to read and to copy from.

Here: programs that read a data set and train a model. Not here: reading itself (`reader`).
"""
