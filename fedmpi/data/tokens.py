"""Turn texts into token ids by a tokenizer of the package tokenizers: words of the training part, or the user's own."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.extras import require_extra
from fedmpi.memory_check import refuse_larger
from fedmpi.paths import expand_user

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The ids 0 and 1 of a vocabulary of words.
PADDING_TOKEN, UNKNOWN_TOKEN = "[PAD]", "[UNK]"
# Names of the padding token in other tokenizers.
PADDING_TOKENS = (PADDING_TOKEN, "<pad>", "<PAD>", "[pad]")
# So many texts are encoded at once.
BATCH_TEXTS = 4096


class TokenSettings(Protocol):
    """The settings of texts, see columns.Columns."""
    @property
    def vocabulary(self) -> int: """Return the largest number of different ids."""
    @property
    def length(self) -> int: """Return how many ids a text has."""
    @property
    def tokenizer(self) -> str | None: """Return the user's own tokenizer.json."""


def encode_parts(parts: list[list[str]], settings: TokenSettings) -> tuple[list[np.ndarray], str, int]:
    """Return the ids of the texts of each part, int32 (n, length), the tokenizer as JSON text, and the id of padding.

    The vocabulary is that of the first part. Raises BadInput if the package or the user's tokenizer is missing, if the
    latter has no padding, or if the ids are more than fit into memory."""
    texts = sum(map(len, parts))
    refuse_larger(4 * texts * settings.length, f"data.length = {settings.length}: the ids of {texts} texts",
                  "lower it, or use fewer texts")
    with require_extra("text", "data.text needs the package tokenizers"):
        import tokenizers  # noqa: F401
    with limit_to_one_thread():
        made = load_tokenizer(settings.tokenizer) if settings.tokenizer else train_tokenizer(
            parts[0], settings.vocabulary)
        # What is kept leaves room for texts of any length.
        kept = made.to_str()
        padding, side = find_padding(made, f"data.tokenizer = {settings.tokenizer}")
        made.enable_truncation(settings.length)
        # The package would keep a hundred bytes for each id of padding.
        made.no_padding()
        return [encode_part(made, texts, settings.length, padding, side) for texts in parts], kept, padding


def find_padding(made: Tokenizer, where: str) -> tuple[int, str]:
    """Return the id of padding, and the side of a text on which it stands: what the tokenizer itself says, else a token
    of a known name, else 0.

    Raises BadInput, whose message begins with `where`, if 0 belongs to a word."""
    if own := made.padding:
        return own["pad_id"], own["direction"]
    for name in PADDING_TOKENS:
        if (known := made.token_to_id(name)) is not None:
            return known, "right"
    first, special = made.id_to_token(0), made.get_added_tokens_decoder().get(0)
    if first is not None and first != getattr(made.model, "unk_token", None) and not (special and special.special):
        raise BadInput(f"{where}: has no padding, and 0, which would stand for it, is the id of {first!r}; let "
                       "Tokenizer.enable_padding name a token for it, and save the file again")
    return 0, "right"


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Return a tokenizer of words: lower case, punctuation apart, the most frequent words first and equally frequent
    ones by the alphabet."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    made = Tokenizer(models.WordLevel(unk_token=UNKNOWN_TOKEN))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=[PADDING_TOKEN,
                                                              UNKNOWN_TOKEN], show_progress=False))
    return made


def load_tokenizer(file: str) -> Tokenizer:
    """Read a tokenizer.json. Raises BadInput."""
    from tokenizers import Tokenizer
    path = expand_user(file, "data.tokenizer")
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    # The package raises bare Exceptions for a file that is not a tokenizer.
    except Exception as error:
        raise BadInput(f"data.tokenizer = {path}: cannot read it ({' '.join(str(error).split())}); give a "
                       "tokenizer.json, as Tokenizer.save of the package tokenizers writes it") from None


def encode_part(made: Tokenizer, texts: list[str], length: int, padding: int, side: str) -> np.ndarray:
    """Return the ids of texts, int32 (n, length), with the id `padding` on the left or right side of short ones."""
    x = np.full((len(texts), length), padding, np.int32)
    for first in range(0, len(texts), BATCH_TEXTS):
        for row, found in enumerate(made.encode_batch(texts[first:first + BATCH_TEXTS]), first):
            ids = found.ids[:length]
            x[row, length - len(ids) if side == "left" else 0:][:len(ids)] = ids
    return x


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Let the package use one thread, unless the user says otherwise: its threads would not survive a fork."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ.setdefault(name, "false")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
