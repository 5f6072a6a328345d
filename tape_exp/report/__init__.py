"""The site of results: every table, figure and run, one's own too."""
