"""What a sentence-transformers model does after its transformer, in parts that repairs fit into."""

from __future__ import annotations

from typing import Any

import numpy as np

from isotropy.errors import InputError, MissingExtraError
from isotropy.sources.loading import is_model, is_sentence_transformer, loading
from isotropy.sources.models import Model, Rows

MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


class OwnPooling:
    """The pooling of a sentence-transformers model, and the layers after it.

    Attributes
    ----------
    mode : {"mean", "cls", "last"}
    prompt : str
        What the model puts before every text.
    max_length : int
        Tokens that it takes.
    n_features : int
        Width of its vectors.

    Raises
    ------
    InputError
        Where the model has none, or pools in a way that is not a mean, the first or the last token.
    """

    def __init__(self, name: str, model: Model) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise MissingExtraError(
                "Encoder: pool='own' needs sentence-transformers, which is not installed. "
                'Run: pip install "isotropy[models]".'
            ) from None
        if is_model(name) and not is_sentence_transformer(name):
            raise InputError(
                f"Encoder: pool='own' must be that of a sentence-transformers model, got {name!r}, "
                "which has no modules.json. Use pool='mean'."
            )
        with loading(name, "Encoder"):
            found = SentenceTransformer(name, device="cpu")
        parts = list(found)
        self._after = parts[2:]
        settings = parts[1].get_config_dict() if len(parts) > 1 else {}
        mode = _mode(settings)
        if mode not in MODES or not settings.get("include_prompt", True):
            raise InputError(
                f"Encoder: pool='own' must be one of {', '.join(MODES)} over all tokens, got "
                f"{mode!r} in {name!r}. Use pool='mean'."
            )
        self.mode = MODES[mode]
        self.prompt = str(found.prompts.get(found.default_prompt_name or "") or "")
        self.max_length = int(found.max_seq_length or model.max_length)
        self._torch = model.torch
        self.n_features = self.width(model.n_features)

    def width(self, n_features: int) -> int:
        """Width of the vectors that are made of pooled rows of this width."""
        return int(self.finish(np.zeros((1, n_features), np.float32)).shape[1])

    def finish(self, pooled: Rows) -> Rows:
        """What the model makes of pooled rows: dense layers, normalisation, or nothing."""
        torch = self._torch
        features: dict[str, Any] = {"sentence_embedding": torch.from_numpy(pooled)}
        with torch.inference_mode():
            for module in self._after:
                features = module(features)
        rows: Rows = features["sentence_embedding"].numpy()
        return rows


def _mode(settings: dict[str, Any]) -> str:
    """The mode of pooling, for which older sentence-transformers have a flag each."""
    if "pooling_mode" in settings:
        return str(settings["pooling_mode"])
    flags = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
    modes = [flag.removeprefix("pooling_mode_").removesuffix("_tokens") for flag in flags]
    return ", ".join(mode.removesuffix("_token") for mode in modes)
