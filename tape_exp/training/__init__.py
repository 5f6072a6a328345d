"""One run, from a config to a record."""
