"""Pretrained models of transformers and sentence-transformers: tokens, hidden states, pooling."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, MissingExtraError, warn
from isotropy.models.loading import (
    extra,
    file_of,
    first_line,
    loading,
    pretrained_location,
    read_json,
    read_modules,
)

Layer = int | str | Sequence[int]
SIMILAR = 0.8  # shortest length in a batch, as a share of the longest, so that padding is cheap


class States(NamedTuple):
    """Hidden states of all tokens of one text, for each layer."""

    number: int
    encoding: Encoding
    layers: list[Float32Array]


def layer_numbers(layer: Layer, n_layers: int) -> list[int]:
    """Layer numbers, from 0 (the embedding layer) to n_layers.

    Examples
    --------
    >>> layer_numbers(-1, 12), layer_numbers([0, -2], 12), layer_numbers("first-last", 12)
    ([12], [0, 11], [1, 12])
    """
    if layer == "first-last":
        return [1, n_layers]
    if layer == "all":
        return list(range(n_layers + 1))
    asked = [layer] if isinstance(layer, (int, np.integer)) else layer
    least = -n_layers - 1
    if isinstance(asked, str) or not len(asked) or not all(least <= i <= n_layers for i in asked):
        raise InputError(
            f"layer must be in {least}..{n_layers}, a list of such, 'all' or "
            f"'first-last', got {layer!r}."
        )
    return [int(i) % (n_layers + 1) for i in asked]


def batched(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions of texts in batches of similar length, longest first, so that failures come early.

    Examples
    --------
    >>> list(batched([3, 10, 9, 10, 4], 20))
    [[1, 3], [2], [4], [0]]
    """
    batch: list[int] = []
    for i in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        longest = lengths[batch[0]] if batch else 0
        full = (len(batch) + 1) * longest > batch_tokens
        if batch and (full or lengths[i] < SIMILAR * longest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


NORMALIZE = "Normalize"  # the module of sentence-transformers that scales to unit length
MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
LIMITS = tuple(  # files of sentence-transformers, old and new, that may give max_seq_length
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


class OwnPooling:
    """The pooling of a sentence-transformers model, and the layers after it.

    Its `prompt` is prepended to every text. Only the parts after the transformer are loaded; that
    one is in `model` already.
    """

    def __init__(self, name: str, model: Model) -> None:
        path = file_of(name, "modules.json")
        if path is None:
            raise InputError(
                f"pool='own' must be that of a sentence-transformers model, got {name!r}, "
                "which has no modules.json. Use pool='mean'."
            )
        modules = read_modules(path)
        with loading(name):
            parts = [_loaded(name, module) for module in modules[1:]]
        settings = parts[0].get_config_dict() if parts else {}
        mode = pooling_mode(settings)
        if mode not in MODES or not settings.get("include_prompt", True):
            raise InputError(
                f"pool='own' must be one of {', '.join(MODES)} over all tokens, got "
                f"{mode!r} in {name!r}. Use pool='mean'."
            )
        self.mode, self._after = MODES[mode], parts[1:]
        self.normalize = any(type(part).__name__ == NORMALIZE for part in self._after)
        self.prompt = default_prompt(file_of(name, "config_sentence_transformers.json"))
        first = [file_of(name, str(Path(modules[0]["path"]) / file)) for file in LIMITS]
        self.max_length = next((max_tokens(path) for path in first if path), model.max_length)
        self._torch = model.torch

    def identity(self) -> list[Any]:
        """What its vectors depend on, besides the rows of tokens."""
        after = [
            [type(part).__name__, repr(part.get_config_dict()), part.state_dict()]
            for part in self._after
        ]
        return [self.mode, self.prompt, after]

    def width(self, n_features: int) -> int:
        """Width of the vectors for pooled rows of this width."""
        return int(self.finish(np.zeros((1, n_features), np.float32)).shape[1])

    def finish(self, pooled: Float32Array) -> Float32Array:
        """Apply what follows pooling in the model: dense layers, normalisation, or nothing."""
        torch = self._torch
        features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(pooled)}
        with torch.inference_mode():
            for module in self._after:
                features = module(features)
        rows: Float32Array = features["sentence_embedding"].numpy()
        return rows


def _loaded(name: str, module: dict[str, Any]) -> Any:
    """A part of a sentence-transformers model, without the others."""
    try:
        from sentence_transformers.util import import_from_string
    except ImportError as error:
        raise MissingExtraError(
            "pool='own' needs sentence-transformers, which is not installed. "
            'Run: pip install "isotropy[models]".'
        ) from error
    kind, path = str(module.get("type")), str(module.get("path", ""))
    if not kind.startswith("sentence_transformers.") or ".." in Path(path).parts:
        raise InputError(
            f"pool='own' must be made of parts of sentence-transformers, got {kind!r} in "
            f"{name!r}. Use pool='mean'."
        )
    return import_from_string(kind).load(name, subfolder=path).eval()


def max_tokens(path: Path) -> int:
    """The maximum number of tokens that a sentence-transformers model declares."""
    settings = read_json(path)
    found = settings.get("max_seq_length") if isinstance(settings, dict) else settings
    if isinstance(settings, dict) and found is None:
        return NO_LIMIT
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise InputError(
            f"{str(path)!r} must give max_seq_length, a number of tokens, got "
            f"{str(found)[:60]}. Save the model again."
        )
    return found


def default_prompt(path: Path | None) -> str:
    """What sentence-transformers prepends to every text."""
    settings = {} if path is None else read_json(path)
    prompts = settings.get("prompts") if isinstance(settings, dict) else None
    name = settings.get("default_prompt_name") if isinstance(settings, dict) else None
    return str(prompts.get(name) or "") if isinstance(prompts, dict) and name else ""


def pooling_mode(settings: dict[str, Any]) -> str:
    """The pooling mode; older sentence-transformers have one flag for each."""
    if "pooling_mode" in settings:
        return str(settings["pooling_mode"])
    flags = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
    modes = [flag.removeprefix("pooling_mode_").removesuffix("_tokens") for flag in flags]
    return ", ".join(mode.removesuffix("_token") for mode in modes)


Float32Array = NDArray[np.float32]
NO_LIMIT = 1 << 20  # tokenizers without a limit say 1e30
AFTER_PADDING = re.compile("(xlm-)?roberta(-prelayernorm)?|camembert|mpnet|longformer")
"""Types of models whose positions start after that of the padding token."""
PASSING_SETTINGS = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")  # of a config
PASSING_TOKENIZING = ("truncation", "padding")  # set by each call


@dataclass(frozen=True)
class Encoding:
    """The tokens of one text, with the characters that each stands for."""

    ids: list[int]
    special: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.ids)


class Model:
    """A model that gives hidden states, with its tokenizer; safe to use from several threads."""

    def __init__(self, name_or_path: Any, device: str | None = None) -> None:
        self.name = os.fspath(name_or_path)
        torch, transformers = extra()
        with loading(self.name):
            where, options = pretrained_location(self.name)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
            found, notes = transformers.AutoModel.from_pretrained(
                where, dtype=torch.float32, output_loading_info=True, **options
            )
            config = found.config
            self.n_features = self._size(config, "hidden_size", "d_model")
            self.revision: str | None = getattr(config, "_commit_hash", None)
            self.n_layers = self._size(config, "num_hidden_layers", "num_layers")
            self.max_length = min(self._limits(config, Path(where)))
        network = found.get_encoder() if config.is_encoder_decoder else found
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.network = network.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"device {device!r} cannot be used ({first_line(error)}). Use 'cpu'."
            ) from error
        self._made_up = set(notes["missing_keys"])
        needless = ("pooler.", "decoder.")  # for hidden states of encoders
        missing = sorted(key for key in self._made_up if not key.startswith(needless))
        if missing:
            warn(
                f"Encoder: {len(missing)} weights of {self.name!r} are in none of its files, "
                f"and random, such as {missing[0]}."
            )
        self.torch, self.device = torch, torch.device(device)
        self._tokenizing, self._running = threading.Lock(), threading.Lock()

    def _size(self, config: Any, *names: str) -> int:
        found = next((size for name in names if (size := getattr(config, name, None))), None)
        if not isinstance(found, int):
            raise InputError(
                f"{self.name!r} must be a model of texts, got a config of kind "
                f"{config.model_type!r} without {names[0]}. Use one that takes nothing but text."
            )
        return found

    def _limits(self, config: Any, folder: Path) -> Iterator[int]:
        yield int(min(self.tokenizer.model_max_length, NO_LIMIT))
        settings = folder / LIMITS[0]
        if settings.is_file():
            yield max_tokens(settings)
        positions = getattr(config, "max_position_embeddings", None)
        if positions:
            skipped = AFTER_PADDING.fullmatch(config.model_type)
            yield int(positions) - (config.pad_token_id + 1 if skipped else 0)

    def fingerprint(self) -> str:
        """A checksum of the config, the tokenizer, and a sample of each weight tensor.

        Weights that are not in the files, such as an unused pooler, are random, and left out.
        """
        text = self.network.config.to_json_string()
        settings = json.loads(text, object_hook=lambda part: _without(part, PASSING_SETTINGS))
        digest = hashlib.sha256(type(self.network).__name__.encode())
        digest.update(json.dumps([settings, self._vocabulary()], sort_keys=True).encode())
        for name, weight in sorted(self.network.state_dict().items()):
            if name in self._made_up:
                continue
            flat = weight.detach().flatten()
            picked = flat[:: max(1, flat.numel() // 64)][:64]
            digest.update(name.encode() + picked.float().cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    def _vocabulary(self) -> Any:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return sorted(self.tokenizer.get_vocab().items())
        with self._tokenizing:
            text = backend.to_str()
        return _without(json.loads(text), PASSING_TOKENIZING)

    def encodings(self, texts: Sequence[str], max_length: int) -> list[Encoding]:
        """The tokens of every text, cut at max_length."""
        found = self._tokenized(texts)
        long = [i for i, encoding in enumerate(found) if len(encoding) > max_length]
        if long:
            cut = self._tokenized([texts[i] for i in long], max_length)
            for i, encoding in zip(long, cut, strict=True):
                found[i] = encoding
        return found

    def _tokenized(self, texts: Sequence[str], max_length: int | None = None) -> list[Encoding]:
        fast = self.tokenizer.is_fast
        with self._tokenizing:  # truncation is a state of the tokenizer
            found = self.tokenizer(
                list(texts),
                truncation=max_length is not None,
                max_length=max_length,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                return_offsets_mapping=fast,
                verbose=False,
            )
        offsets = found["offset_mapping"] if fast else [[(0, 0)] * len(i) for i in found.input_ids]
        return [
            Encoding(
                ids,
                np.array(special, dtype=bool),
                np.array(places, dtype=np.int64).reshape(-1, 2),
                max_length is not None,
            )
            for ids, special, places in zip(
                found["input_ids"], found["special_tokens_mask"], offsets, strict=True
            )
        ]

    def hidden(
        self, encodings: Sequence[Encoding], layers: Sequence[int]
    ) -> list[list[Float32Array]]:
        """For each text, the hidden states of each layer: arrays of shape (n_tokens, d)."""
        lengths = [len(encoding) for encoding in encodings]
        ids = np.full((len(lengths), max(lengths)), self.tokenizer.pad_token_id or 0)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : lengths[row]] = encoding.ids
            mask[row, : lengths[row]] = 1
        arrays = self._states(ids, mask, layers)
        return [[array[row, :n] for array in arrays] for row, n in enumerate(lengths)]

    def _states(
        self, ids: NDArray[Any], mask: NDArray[Any], layers: Sequence[int]
    ) -> list[Float32Array]:
        torch = self.torch
        last_only = list(layers) == [self.n_layers]
        with self._running, torch.inference_mode():
            found = self.network(
                input_ids=torch.from_numpy(ids).to(self.device),
                attention_mask=torch.from_numpy(mask).to(self.device),
                output_hidden_states=not last_only,
            )
            every = {self.n_layers: found.last_hidden_state} if last_only else found.hidden_states
            return [every[layer].float().cpu().numpy() for layer in layers]


def _without(part: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in names}
