"""What an artifact needs beyond its YAML, which names these functions by their paths."""
