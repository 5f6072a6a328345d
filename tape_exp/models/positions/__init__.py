"""The positional encodings, a file for each or for those of one kind.

``base`` is their interface, of which each overrides what differs; ``parts`` and ``rope_scaling``
are what several are made of. By what they override:

- ``embed``, added to the input: ``learned``, ``sinusoidal``, ``abacus``;
- ``rotate``, queries and keys by the position: ``rope``, ``xpos``, ``pope``, ``grape``; by what
  tokens choose: ``carope``, ``repo``, ``selective_rope``;
- ``bias``, of the distance: ``alibi``, ``t5``, ``kerple``, ``fire``; of the content: ``cope``,
  ``dape``, ``fox``, ``path``, ``wall``; beside rotations: ``rerope``;
- ``carry`` and ``update``, a state that layers hand on: ``tape``, its general form ``tape_tensor``,
  and ``tape_complex`` and ``tape_householder``;
- nothing: ``nope``, and ``tape_public_addition``, whose positions nothing reads.
"""
