"""What every positional encoding is promised and must do, as a table of situations that its author
runs: ``tape-exp check``.

Each situation makes small decoders from the section ``model`` of a config, whose positional
parameters are random, and compares their logits, or gradients, with those of the explicit softmax
in fp64 on each row alone. Rows are longer than every block, table and threshold: a section with a
number that is longer than a row is tried once more with a short one. One more situation is one more
function in :data:`SITUATIONS`.
"""

from collections.abc import Callable

from tape_exp.machine.seeding import RowSampler
from tape_exp.models.biases import BiasError
from tape_exp.models.conformance.batches import (
    cached,
    cached_and_padded,
    grouped_queries,
    left_padding,
    positions_given,
    right_padding,
    sampled_positions,
    whole_rows,
    window_and_sinks,
)
from tape_exp.models.conformance.encodings import (
    MANY,
    constructor_values,
    many_positions,
    reloaded,
    shifted_positions,
)
from tape_exp.models.conformance.oracle import (
    NonconformingError,
    NotAskedError,
    Outcome,
    random_decoder,
    randomise,
    rows,
)
from tape_exp.models.conformance.training import (
    autocast_in_bf16,
    compiled,
    gradient_checkpointing,
    gradients,
    weights_in_bf16,
)
from tape_exp.models.sections import ARCH, LONG_ARCH, Model, with_short_thresholds
from tape_exp.settings.errors import ConfigError

__all__ = [
    "ARCH",
    "MANY",
    "SITUATIONS",
    "NonconformingError",
    "NotAskedError",
    "Outcome",
    "outcome_of",
    "random_decoder",
    "randomise",
]

# The functions, each with its docstring, are the table in the docs.
IN_ORDER: tuple[Callable[[Model], Outcome], ...] = (
    whole_rows,
    left_padding,
    right_padding,
    cached,
    cached_and_padded,
    positions_given,
    grouped_queries,
    window_and_sinks,
    sampled_positions,
    autocast_in_bf16,
    weights_in_bf16,
    gradients,
    gradient_checkpointing,
    compiled,
    constructor_values,
    reloaded,
    many_positions,
    shifted_positions,
)
SITUATIONS = {situation.__name__: situation for situation in IN_ORDER}
# Not tried once more with a short threshold.
AS_GIVEN = ("compiled", "constructor_values", "reloaded", "many_positions", "shifted_positions")


def outcome_of(situation: str, model: Model) -> Outcome:
    """Put an encoding in a situation, also beyond its thresholds, and return the worse outcome.

    Raises:
        NonconformingError: it does not do what it must.
        NotAskedError: it refuses the situation in a sentence of its own.
    """
    short, changed = with_short_thresholds(model)
    models = [model, short] if changed and situation not in AS_GIVEN else [model]
    try:
        outcomes = [SITUATIONS[situation](section) for section in models]
    except BiasError as error:
        raise NonconformingError(str(error)) from error
    except ConfigError as refused:
        random_decoder(model, LONG_ARCH)(rows(1, 2), sampler=RowSampler(5))  # must be possible
        raise NotAskedError(str(refused)) from refused
    except IndexError as error:
        raise NonconformingError(
            f"{error}: a table of positions says how many it has, self.reach, and padding among "
            "places.tokens is -1."
        ) from error
    return max(outcomes, key=lambda outcome: outcome.difference or 0)
