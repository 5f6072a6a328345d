"""tape_exp: experiments on positional encodings in decoder-only transformers."""
