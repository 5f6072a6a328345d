"""What the language tasks share: a corpus, its tokenizer, and samples of it to look into."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from tape_exp.data.special_tokens import NAMES
from tape_exp.data.text import NoFilesError, Split, Text
from tape_exp.data.tokenization import Tokenization
from tape_exp.data.tokenizers import Tokenizer
from tape_exp.data.tokens import Tokens, tokenise
from tape_exp.machine.files import short_hash
from tape_exp.runs import checkpoint_info
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.schema import Arch, Count
from tape_exp.tasks.base import NO_OPTIM, Task


class TextTask(Task):
    """A task on text: :meth:`prepare_data` makes the tokenizer and gives ``arch`` its vocabulary. A
    subclass that trains sets ``optim``.

    Args:
        text: the corpus.
        tokenizer: how it is cut; where the run begins from a checkpoint, the checkpoint's own
            tokenizer is used.
        train_length: T, the tokens that the model is trained on at once.
    """

    tokenizer: Tokenizer
    measures: tuple[str, ...] = ()

    def __init__(
        self, arch: Arch, seed: int, text: Text, tokenizer: Tokenization, train_length: Count
    ) -> None:
        super().__init__(arch, NO_OPTIM, seed, train_length=train_length, max_length=train_length)
        self.text = text
        self.tokenization = tokenizer
        self.train_length = train_length
        self._prepared = False

    def set_max_length(self, longest: int) -> None:
        """Give the model as many positions as its longest sequence has tokens."""
        self.arch = dataclasses.replace(self.arch, max_length=max(longest, self.train_length))

    def prepare_data(self) -> None:
        """Make the tokenizer and whatever :meth:`prepare` needs; the second call does nothing.

        Raises:
            ConfigError: a text is not there; the sentence names the key of its folder.
        """
        if self._prepared:
            return
        try:
            self.check_texts()
            self.adopt(self._tokenizer())
            self.prepare()
        except NoFilesError as error:
            key = next(key for key, text in self.texts_by_key().items() if text is error.text)
            raise NoFilesError(error.text, error.split, key) from None
        self._prepared = True

    def texts_by_key(self) -> dict[str, Text]:
        """Return the corpora that the task reads, by their keys."""
        return {"task.text": self.text}

    def check_texts(self) -> None:
        """Refuse texts that do not go together, before anything is tokenised."""

    def adopt(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer, and the vocabulary of the model from it, where none is given. Raises
        :class:`ConfigError` where it needs more tokens than the model has.
        """
        if 0 < self.arch.vocab < tokenizer.needed:
            raise ConfigError(
                f"the tokenizer needs {tokenizer.needed} tokens, and the model has "
                f"{self.arch.vocab}: they do not belong together. Put the model's own "
                "tokenizer.json and tokenizer_config.json beside its weights, or add tokens to the "
                "model by resize_token_embeddings of transformers."
            )
        self.size_vocabulary(self.arch.vocab or tokenizer.vocab)
        tokenizer.serve(self.arch.vocab, bos_ends=not self.published)
        self.tokenizer = tokenizer

    def _tokenizer(self) -> Tokenizer:
        """Load the checkpoint's tokenizer, or make that of the settings, which must then be the
        same.
        """
        checkpoint = self.run_context.checkpoint
        stored = checkpoint_info.file_beside(checkpoint, "tokenizer.json") if checkpoint else None
        if stored is not None:
            return self.tokenization.load(stored)
        if checkpoint and checkpoint.is_dir():
            raise ConfigError(
                f"{checkpoint} has no tokenizer.json. transformers writes one: "
                "AutoTokenizer.from_pretrained(<folder>).save_pretrained(<folder>)."
            )
        made = self.tokenization.make(self.text, self.run_context.cache)
        trained = checkpoint_info.trained_tokenizer(checkpoint) if checkpoint else None
        if trained not in (None, made.fingerprint):
            raise ConfigError(
                f"checkpoint {checkpoint} was trained with another tokenizer than task.tokenizer "
                "gives. Name the run's folder in checkpoint=, which holds its tokenizer, or set "
                "task.tokenizer.kind=file and task.tokenizer.path=<its tokenizer.json>."
            )
        return made

    def prepare(self) -> None:
        """Tokenise what the task reads."""

    def trained_tokens(self) -> int:
        """Return the length of the longest row that the weights have seen, as the run or the Llama
        that they are of says where nothing is trained here; ``train_length`` where neither does.
        """
        begun = self.run_context.checkpoint
        if self.trains or begun is None:
            return self.train_length
        return checkpoint_info.longest_trained_row(begun) or self.train_length

    @property
    def published(self) -> bool:
        """Say whether the weights are those of a Llama that nothing is trained on here. Published
        models have learnt to begin from BOS and never to write it. Models that are trained here
        learn from blocks of documents, in which it separates them.
        """
        begun = self.run_context.checkpoint
        return begun is not None and begun.is_dir() and not self.trains

    @property
    def unscored(self) -> int | None:
        """Return the token that perplexity reads and does not score: the BOS between documents,
        which neither transformers nor lm-eval asks a published model for. Of others every token
        counts.
        """
        return self.tokenizer.bos if self.published else None

    def tokens(self, text: Text, split: Split, needed: int | None = None) -> Tokens:
        """Read the tokens of a split, as many as are needed (:func:`tokenise`)."""
        return tokenise(text, split, self.tokenizer, self.run_context.cache, needed)

    @property
    def eos(self) -> int:
        """Return the token that ends an answer."""
        return self.tokenizer.eos

    @property
    def stop_tokens(self) -> Sequence[int]:
        """List EOS, what else ends an answer of a Llama, and of other models the BOS with which
        they begin another document.
        """
        return self.tokenizer.ends

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt
        (:meth:`~tape_exp.data.tokenizers.Tokenizer.encode_prompt`).
        """
        return self.tokenizer.encode_prompt(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode([*ids])

    def assets(self) -> dict[str, str]:
        """Return the tokenizer, for tasks that begin from the run, the special tokens that its
        files name, and a Llama's template of a chat.
        """
        begun = self.run_context.checkpoint
        template = checkpoint_info.chat_template(begun) if begun else None
        files = {}
        if template is not None:
            files["chat_template.jinja"] = template
        if self.tokenizer.named is not None:
            files[NAMES] = self.tokenizer.named.config()
        files["tokenizer.json"] = self.tokenizer.save()
        return files

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands and what it is a stream of, for the checkpoint."""
        what = {"tokenizer": self.tokenizer.fingerprint, "data": self.fingerprint()}
        return super().state_dict() | what

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise :class:`ConfigError` where the checkpoint is of another tokenizer or other data."""
        if state["tokenizer"] != self.tokenizer.fingerprint:
            what = "with another tokenizer than task.tokenizer now gives"
        elif state["data"] != self.fingerprint():
            what = "on other text than task.text now holds"
        else:
            return
        raise ConfigError(
            f"the checkpoint was trained {what}. Restore the files, or train afresh in another "
            "folder: runs=<folder>."
        )


class Analysis(TextTask):
    """Looks into a trained model on a sample text; nothing is trained.

    Args:
        layers: of interest, counted from 1; those that the model lacks are left out. None: all.
        split: of ``text``, whose first tokens are the sample.
        rows, length: of the sample; null: the trained length.
    """

    trains = False

    def __init__(
        self,
        layers: tuple[int, ...] | None = None,
        split: Split = "test",
        rows: Count = 1,
        length: Count | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.length = self.train_length if length is None else length
        self.set_max_length(self.length)
        numbers = range(1, self.arch.layers + 1)
        self.layers = [layer for layer in layers or numbers if layer in numbers]
        if not self.layers:
            raise ConfigError(f"task.layers={layers}: the layers are 1 … {self.arch.layers}.")
        self.split = split
        self.rows = rows

    def prepare(self) -> None:
        """Read the sample. Raises :class:`ConfigError` where the text is too short for it."""
        needed = self.rows * self.length
        tokens = self.tokens(self.text, self.split, needed)
        if len(tokens) < needed:
            raise ConfigError(
                f"text {self.text.name} has {len(tokens)} tokens, and task.rows={self.rows} of "
                f"task.length={self.length} need {needed}; ask fewer."
            )
        self.sample = torch.from_numpy(tokens[:]).view(self.rows, self.length)

    def fingerprint(self) -> str:
        """Hash the sample."""
        return short_hash([self.sample.numpy().tobytes()])
