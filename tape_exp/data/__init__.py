"""Data: text and its sources, tokenizers, rows of tokens, and generated sets.

From a corpus to a batch: ``text`` (which documents) reads ``files`` (what is in a file) or the
``hub``; ``tokenization`` makes one of the ``tokenizers``, with its ``special_tokens``, which cuts
documents into ids; ``tokens`` keeps them in one file; ``batch`` says what a model is given.
``scrolls`` and ``scrolls_metrics`` are the benchmark SCROLLS, ``retrieval`` questions in filler,
``groups`` finite groups, and ``builtin`` what needs no network.
"""
