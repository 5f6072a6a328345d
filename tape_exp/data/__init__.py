"""Text for the language tasks: where it comes from, how it is cut into tokens, and how tokens lie
on disk.
"""
