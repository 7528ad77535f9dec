"""`imageshards doctor`: whether this machine can build, and what to do if it cannot.

Here: the checks, one module for each subject, and their table. Each check returns `Finding`s and
never raises. Not here: checks of the options and inputs of a build (`imageshards build --dry_run`).
"""
