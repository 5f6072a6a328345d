"""Tasks: what is learned and how it is measured. A file is one task, or what several share.

What an author of a task reads: ``sequences`` (rows of a prompt and an answer) or ``base`` (any
other rows), with ``slices`` (scores of rows by length); ``text`` (a corpus and its tokenizer).

Tasks on symbols: ``battery`` (a file for each family of problems), ``arithmetic`` with ``sums``,
``word_problem``. Tasks on text: ``pretrain`` and ``mixture``; ``perplexity``; ``passkey`` and
``retrieval``, both ``questions`` whose ``prompts`` fill a length; ``scrolls`` and ``reading``, with
their ``answers``; ``benchmarks`` by ``lm_eval_tasks``. Looking into a model: ``patterns``,
``stability``, ``efficiency``, and in ``diagnostics`` what other tasks report of it.
"""
