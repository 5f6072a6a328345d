"""Pictures: heatmaps, curves and patterns, and the looks of encodings."""
