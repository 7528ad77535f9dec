"""The options of `imageshards build`: their declarations, and what is made from them.

Here: groups of options as frozen dataclasses, the parser, Beam's arguments, generated tables. Not
here: checks of combinations (`pipeline.validation`) and the objects made from options
(`pipeline.assembly`). Importing it loads neither Beam nor numpy, Pillow and pyarrow.
"""
