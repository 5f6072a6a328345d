"""A decoder as a model of EleutherAI's lm-evaluation-harness: log-likelihoods, greedy answers."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tape_exp.data.tokenizers import Tokenizer
from tape_exp.machine.seeding import RowSampler
from tape_exp.machine.sharing import answers_of_all, batched
from tape_exp.models.generation import generate
from tape_exp.models.head import LogitsAt
from tape_exp.settings.errors import ConfigError

log = logging.getLogger("tape_exp")
# Of generation_kwargs: read only where text is sampled, and the values that change no answer.
SAMPLING = {"temperature", "top_p", "top_k", "min_p", "typical_p"}
WITHOUT_EFFECT = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1}
# What lm-eval caches the answer under, context, continuation.
Request = tuple[Any, list[int], list[int]]
Answer = tuple[float, bool]  # log p of the continuation, and whether it is the greedy one
Row = tuple[int, ...]  # the tokens that a model is given
EMPTY = (
    "a benchmark asks for the likelihood of an empty continuation, which has none; give every "
    "choice and answer of its YAML or data a text."
)


@dataclass(frozen=True)
class Continuation:
    """What is scored at the end of a row of a batch, the token after the row included."""

    request: int  # its number among all
    tokens: list[int]
    row: int  # of the batch


def continuation_scores(logits_NV: Tensor, targets_N: Tensor, lengths: list[int]) -> list[Answer]:
    """Score continuations of so many tokens each, whose tokens and logits follow one another."""
    log_p_NV = logits_NV.float().log_softmax(-1)
    log_p_N = log_p_NV.gather(-1, targets_N[:, None])[:, 0].double().cpu()
    is_greedy_N = (log_p_NV.argmax(-1) == targets_N).cpu()
    answers = []
    for log_p, is_greedy in zip(log_p_N.split(lengths), is_greedy_N.split(lengths), strict=True):
        answers.append((float(log_p.sum()), bool(is_greedy.all())))
    return answers


class Harness(TemplateLM):
    """Answers lm-eval's requests as its own ``HFLM`` does: special tokens that a text says are
    tokens; a continuation's tokens are those of context and continuation together less those of the
    context; a context begins with BOS, once; what is longer than ``max_length`` loses its
    beginning. Under several processes each answers its share of the batches and all return every
    answer, so that lm-eval itself runs as one process in each of them.

    Unlike ``HFLM`` it holds no logits but those of continuations, which ``HFLM`` also gives to
    requests that are cut elsewhere; BOS given BOS is not scored; and rows draw random positions of
    their own.

    ``model`` is called as its ``decoder``, which generates; ``max_length`` is the longest input, in
    tokens; a batch has ``rows``; ``progress(items, description)`` iterates and shows how far it is;
    ``template`` is that of a chat, in which lm-eval's ``apply_chat_template`` asks.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        max_length: int,
        rows: int,
        progress: Any,
        template: str | None = None,
    ) -> None:
        super().__init__()
        self.template = template
        self.model = model
        self.ids = tokenizer
        self.max_length = max_length
        self.rows_per_batch = rows
        self.progress = progress
        if tokenizer.prefix != tokenizer.bos:
            log.info(
                "A text without a context follows %s, as in lm-eval: the tokenizer has no BOS.",
                tokenizer.backend.id_to_token(tokenizer.prefix),
            )

    @property
    def eot_token_id(self) -> int:
        return self.ids.eos

    @property
    def prefix_token_id(self) -> int:
        return self.ids.prefix

    @property
    def tokenizer_name(self) -> str:
        return self.ids.fingerprint

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the turns of a chat as the text of a prompt; what the assistant has begun to say
        is left open where the prompt is to go on from it.
        """
        assert self.template is not None  # lm-eval is told to ask so only where there is one
        return self.ids.chat(self.template, chat_history, add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: Any = None, **_: Any) -> list[int]:
        """Return ids of a text, begun as prompts are unless ``add_special_tokens`` is False."""
        if add_special_tokens is False:
            return self.ids.pieces(string, prompt=True).ids
        return self.ids.encode_prompt(string)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Answer]:
        """Return log p of continuations, and whether they are the greedy ones."""
        if any(request.args == ("", "") for request in requests):
            raise ConfigError(EMPTY)
        answers: list[Answer] = super().loglikelihood(requests, disable_tqdm)
        return answers

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[Answer]:
        """Score continuations; requests with the same inputs, such as the letters of a question,
        share a row.
        """
        requests_of = self._requests_of_rows(requests)
        cut = sum(len(context) + len(text) > self.max_length + 1 for _, context, text in requests)
        if cut:
            log.warning(
                "%d of %d requests are longer than %d tokens and lost their beginning.",
                cut,
                len(requests),
                self.max_length,
            )
        rows = sorted(requests_of, key=lambda row: (-len(row), row))

        def score(batch: Sequence[Row], first: int) -> dict[int, Answer]:
            continuations: list[Continuation] = []
            for index, row in enumerate(batch):
                for number in requests_of[row]:
                    continuations.append(Continuation(number, requests[number][2], index))
            return self._score(batch, continuations, first)

        scores = answers_of_all(batched(rows, self.rows_per_batch), score, self.progress, "scoring")
        return [scores[number] for number in range(len(requests))]

    def _requests_of_rows(self, requests: Sequence[Request]) -> dict[Row, list[int]]:
        """Return the inputs of all requests, and the numbers of those that share each."""
        requests_of: dict[Row, list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            if not continuation:
                raise ConfigError(EMPTY)
            length = len(continuation)
            if length > self.max_length:
                raise ConfigError(
                    f"a continuation of {length} tokens is longer than the model's "
                    f"{self.max_length}; set task.longest={length} or more."
                )
            row = (*context, *continuation)[-(self.max_length + 1) : -1]
            requests_of.setdefault(row, []).append(number)
        return requests_of

    def _score(
        self, batch: Sequence[Row], continuations: Sequence[Continuation], first: int
    ) -> dict[int, Answer]:
        """Score continuations by the number of their requests, in a batch of rows that are padded
        on the right, where a causal model does not see it. ``first`` is the number of its first row
        among all.
        """
        inputs = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)
        places: list[int] = []  # of the logits that predict a continuation, in the whole batch
        targets: list[int] = []
        for continuation in continuations:
            end = continuation.row * inputs.shape[1] + len(batch[continuation.row])
            places += range(end - len(continuation.tokens), end)
            targets += continuation.tokens
        logits = self.model(
            inputs,
            output=LogitsAt(torch.tensor(places)),
            lengths_B=torch.tensor([len(row) for row in batch]),
            sampler=RowSampler(0, "evaluation", first=first),
        )
        lengths = [len(continuation.tokens) for continuation in continuations]
        answers = continuation_scores(logits, torch.tensor(targets).to(logits.device), lengths)
        numbers = [continuation.request for continuation in continuations]
        return dict(zip(numbers, answers, strict=True))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return log p of whole texts, in nats, in windows: each token once, the first given the
        prefix, which a text may say itself.
        """
        windows: list[list[Request]] = []
        for request in requests:
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            prefix = self.ids.prefix
            tokens = tokens[1:] if tokens[:1] == [prefix] else tokens
            pairs = get_rolling_token_windows(tokens, prefix, self.max_length, context_len=1)
            windows.append([(None, *make_disjoint_window(pair)) for pair in pairs])
        answers = iter(self._loglikelihood_tokens([*itertools.chain(*windows)]))
        totals = []
        for of_text in windows:
            totals.append(sum(log_p for log_p, _ in itertools.islice(answers, len(of_text))))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return greedy answers, each up to its first stop sequence; a context loses its beginning
        so that the answer fits.
        """
        by_length: dict[int, list[tuple[int, list[int]]]] = {}  # by new tokens: (request, prompt)
        stops = []
        cut = 0
        for number, (context, settings) in enumerate(request.args for request in requests):
            new, until = answer_options(settings, self.max_length)
            stops.append(until)
            prompt = self.tok_encode(context) or [self.ids.prefix]
            cut += len(prompt) > self.max_length - new
            by_length.setdefault(new, []).append((number, prompt[-(self.max_length - new) :]))
        if cut:
            log.warning(
                "%d of %d contexts lost their beginning, so that an answer fits in %d tokens.",
                cut,
                len(requests),
                self.max_length,
            )
        answers: dict[int, str] = {}
        for new, prompts in by_length.items():

            def answer(batch: Sequence[Any], first: int, new: int = new) -> dict[int, str]:
                numbers, texts = zip(*batch, strict=True)
                sampler = RowSampler(0, "answers", first=first)
                rows = generate(self.model.decoder, texts, new, self.ids.ends, sampler=sampler)
                return {n: self.ids.decode(row) for n, row in zip(numbers, rows, strict=True)}

            order = sorted(prompts, key=lambda request: (-len(request[1]), request[0]))
            batches = batched(order, self.rows_per_batch)
            answers |= answers_of_all(batches, answer, self.progress, "answering")
        return [postprocess_generated_text(answers[n], stop, None) for n, stop in enumerate(stops)]


def answer_options(settings: dict[str, Any], longest: int) -> tuple[int, list[str]]:
    """Return the tokens that an answer may have, and what ends it, by a benchmark's
    ``generation_kwargs``.

    Raises:
        ConfigError: they ask for what is not done here, or for as many tokens as the model takes.
    """
    options = normalize_gen_kwargs(settings)
    until = options.pop("until")
    tokens = options.pop("max_gen_toks")
    for key, value in options.items():
        if key not in SAMPLING and value is not None and value != WITHOUT_EFFECT.get(key):
            raise ConfigError(
                f"a benchmark asks for {key}={value} in its generation_kwargs; answers are greedy, "
                "and follow only until and max_gen_toks: remove it from a copy of the YAML."
            )
    if tokens < 1 or not all(isinstance(stop, str) for stop in until):
        raise ConfigError(
            f"a benchmark asks for max_gen_toks={tokens} and until={until} in its "
            "generation_kwargs: an answer has at least 1 token, and texts end it."
        )
    if tokens >= longest:
        raise ConfigError(
            f"a benchmark asks for answers of up to {tokens} tokens (max_gen_toks in its "
            f"generation_kwargs), and prompt and answer have {longest} together; set "
            f"task.longest={2 * tokens}, or max_gen_toks in a copy of the YAML."
        )
    return tokens, until
