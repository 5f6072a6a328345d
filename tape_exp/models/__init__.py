"""The decoder, its attention and the positional encodings.

A forward pass, from tokens to logits; the files in the order in which to read them::

    decoder      embeds tokens and runs the blocks; ``layers`` says of what kinds these are
    places       where the tokens of the pass are, counted or by ``random_positions``
    block        attention and SwiGLU, with the methods of the encoding between them
    positions/   the encodings: ``base`` is their interface, ``parts`` what several are made of
    biases       what an encoding adds to logits: one of four kinds
    scores       what the probabilities of one call are made of: queries, keys, biases, masks
    attention    which backend computes them
    backends     the readable reference, and three kernels of libraries
    head         what the pass returns: logits, or a loss of them

What serves these: ``precision``, ``compilation``, ``generation`` and its cache, ``peft`` with
``shifted_sparse``. What looks at a model: ``trace``, ``conformance`` (what every encoding must do)
with ``sections``. Other formats: ``llama``, ``gguf``, ``hf``, ``export``, ``harness``.
"""
