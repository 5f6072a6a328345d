"""A run on disk: its folder and what is in it.

The folder. ``directory`` opens it, locks it and marks the run as done; ``identity`` says which part
of a config decides what is computed, and with it the folder's name; ``manifest`` says by which
command, commit and machine, with ``git``.

What a run reports. ``metrics`` reads metrics.jsonl, ``loggers`` write it and send it on, with
``wandb_run``; ``record`` is what tables are made of.

Its checkpoints. ``checkpoints`` writes them in training and finds the newest, ``checkpoint_files``
names them, ``checkpoint_info`` tells which run or Llama one is of.

The weights that it begins from. ``starting_weights`` finds what ``checkpoint=`` names, a task's run
by ``finished_runs``; ``llama_base`` takes over a Llama's sizes and positions; ``loading`` gives the
weights to a model, which ``agreement`` compares with the model that was trained.
"""
