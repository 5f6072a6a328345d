"""The decoder, its attention and the positional encodings."""
