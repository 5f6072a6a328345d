"""The configuration: its schema, composition and checks, and the errors that users see.

From what the user types to a config: compose (begin there), choices, layers, checks, explain; the
keys and types are in schema, and construct makes objects of sections. commands, parser, errors,
origin and redact are how a command speaks and ends; files, folders, naming and plugins find and
name YAMLs.
"""
