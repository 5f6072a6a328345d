"""Small generated sets in place of SCROLLS, MMLU and ARC, which need neither a network nor a file.

Each text says the answer to its question, in short words, most of which a BPE of Python's own text
holds whole. Every row is a pure function of the data set, the split and its index:

- ``scrolls``: documents and questions of the seven sets of SCROLLS;
- ``facts``: documents with four facts of four kinds, and texts with a few facts of one kind;
- ``benchmarks``: multiple choice as MMLU and ARC have it, as files that lm-eval reads;
- ``words``: the words and the filler of all of them.
"""
