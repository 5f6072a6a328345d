"""Pictures: heatmaps and patterns."""
