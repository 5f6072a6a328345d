"""A decoder as a model of EleutherAI's lm-evaluation-harness: log-likelihoods, greedy answers."""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch.nn.utils.rnn import pad_sequence

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.seeding import RowSampler
from tape_exp.models.generation import batched, generate, shared
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
# What lm-eval caches the answer under, context, continuation.
Request = tuple[Any, list[int], list[int]]
Answer = tuple[float, bool]  # log p of the continuation, and whether it is the greedy one


class Harness(TemplateLM):
    """Answers lm-eval's requests as its own ``HFLM`` does: a continuation's tokens are those of
    context and continuation together less those of the context; BOS comes first; what is longer
    than ``max_length`` loses its beginning. Under several processes each answers its share of the
    batches and all return every answer, so that lm-eval itself runs as one process in each of them.
    Unlike ``HFLM`` it holds no logits but those of continuations, and rows draw random positions of
    their own.

    ``model`` is called as its ``decoder``, which generates; ``max_length`` is the longest input, in
    tokens; a batch has ``rows``; ``progress(items, description)`` iterates and shows how far it is.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, max_length: int, rows: int, progress: Any
    ) -> None:
        super().__init__()
        self.model, self.ids = model, tokenizer
        self.max_length, self.rows_per_batch, self.progress = max_length, rows, progress

    @property
    def eot_token_id(self) -> int:
        return self.ids.eos

    @property
    def prefix_token_id(self) -> int:
        return self.ids.bos

    def tok_encode(self, string: str, add_special_tokens: Any = None, **_: Any) -> list[int]:
        """Ids of a text, begun as prompts are unless ``add_special_tokens`` is False."""
        ids = self.ids.encode([string])[0].tolist()
        return ids if add_special_tokens is False else [*self.ids.begin, *ids]

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[Answer]:
        """Requests with the same inputs, such as the letters of a question, share a row."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            if (length := len(continuation)) > self.max_length:
                raise ConfigError(
                    f"a continuation of {length} tokens is longer than the model's "
                    f"{self.max_length}; set task.longest={length} or more."
                )
            row = (*context, *continuation)[-(self.max_length + 1) : -1]
            rows.setdefault(row, []).append(number)
        if cut := sum(len(x) + len(y) > self.max_length + 1 for _, x, y in requests):
            told = "%d of %d requests are longer than %d tokens and lost their beginning."
            log.warning(told, cut, len(requests), self.max_length)
        order = sorted(rows, key=lambda row: (-len(row), row))

        def score(batch: Sequence[tuple[int, ...]], first: int) -> dict[int, Answer]:
            """The answers of a batch, padded on the right, where a causal model does not see it."""
            inputs = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
            places, targets, lengths = list[int](), list[int](), dict[int, int]()
            for index, row in enumerate(batch):
                end = index * inputs.shape[1] + len(row)
                for number in rows[row]:
                    continuation = requests[number][2]
                    lengths[number] = len(continuation)
                    places += range(end - len(continuation), end)
                    targets += continuation
            sampler = RowSampler(0, "evaluation", first=first)
            logits = self.model(inputs, logits_at=torch.tensor(places), sampler=sampler)
            log_p, target = logits.float().log_softmax(-1), torch.tensor(targets).to(logits.device)
            chosen = log_p.gather(-1, target[:, None])[:, 0].double().cpu()
            greedy = (log_p.argmax(-1) == target).cpu()
            both = (x.split([*lengths.values()]) for x in (chosen, greedy))
            pairs = zip(lengths, *both, strict=True)
            return {number: (float(c.sum()), bool(g.all())) for number, c, g in pairs}

        scores = shared(batched(order, self.rows_per_batch), score, self.progress, "scoring")
        return [scores[number] for number in range(len(requests))]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of whole texts, in nats, in windows: each token once, the first given BOS."""
        windows: list[list[Request]] = []
        for request in requests:
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            pairs = get_rolling_token_windows(tokens, self.ids.bos, self.max_length, context_len=1)
            windows.append([(None, *make_disjoint_window(pair)) for pair in pairs])
        scores = iter(self._loglikelihood_tokens([*itertools.chain(*windows)]))
        return [sum(log_p for log_p, _ in itertools.islice(scores, len(x))) for x in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy answers, each up to its first stop sequence and at most half of ``max_length``; a
        context loses its beginning so that the answer fits.
        """
        by_length: dict[int, list[tuple[int, list[int]]]] = {}  # by new tokens: (request, prompt)
        stops = []
        for number, (context, settings) in enumerate(request.args for request in requests):
            options = normalize_gen_kwargs(settings)
            if options.get("do_sample"):
                raise ConfigError(
                    "the benchmark asks for sampled text (do_sample); only greedy answers are made."
                )
            new = min(int(options["max_gen_toks"]), self.max_length // 2)
            stops.append(options["until"])
            prompt = self.tok_encode(context)[-(self.max_length - new) :]
            by_length.setdefault(new, []).append((number, prompt))
        answers: dict[int, str] = {}
        for new, prompts in by_length.items():

            def answer(batch: Sequence[Any], first: int, new: int = new) -> dict[int, str]:
                numbers, texts = zip(*batch, strict=True)
                sampler = RowSampler(0, "answers", first=first)
                rows = generate(self.model.decoder, texts, new, self.ids.ends, sampler=sampler)
                return {n: self.ids.decode(row) for n, row in zip(numbers, rows, strict=True)}

            order = sorted(prompts, key=lambda one: (-len(one[1]), one[0]))
            batches = batched(order, self.rows_per_batch)
            answers |= shared(batches, answer, self.progress, "answering")
        return [postprocess_generated_text(answers[n], stop, None) for n, stop in enumerate(stops)]
