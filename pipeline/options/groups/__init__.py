"""The options of a build, each declared once, in groups.

To add an option, declare it in its group and use it; nothing else changes. `BuildOptions` has the
order of the groups in `imageshards build --help`.
"""
