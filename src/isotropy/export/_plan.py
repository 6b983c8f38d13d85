"""Which modules a repaired sentence-transformers model has, in which order."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotropy.errors import InputError, brief, warn
from isotropy.export._layers import (
    TOKENS,
    Coded,
    Dense,
    Layer,
    Routes,
    absorbed,
    as_layers,
    widened,
)
from isotropy.models import MODES, short_name
from isotropy.repairs import Origin, Repair, origin_warning
from isotropy.repairs.steps import Multiply, Normalize

CODE = "modeling_isotropy.py"
UNIT = 1e-3  # how far from one the mean squared norm of unit rows may be
OF_ROWS = {"mean", "weightedmean", "cls", "lasttoken"}  # poolings that an affine map can follow


@dataclass(frozen=True)
class Part:
    """A module of a model."""

    kind: str  # last part of its type
    width: int | None = None  # of its vectors, where it decides that
    mode: str = ""  # of Pooling
    dense: Dense | None = None  # of Dense without activation


@dataclass(frozen=True)
class Model:
    """The modules of a model, in order."""

    parts: list[Part]
    name: str | None = None
    prompt: str | None = None
    truncate_dim: int | None = None
    own_pooling: bool = True  # rather than the one that sentence-transformers adds
    n_layers: int | None = None

    @property
    def end(self) -> int:
        """Number of modules before the final Normalize."""
        others = [i for i, part in enumerate(self.parts) if part.kind != "Normalize"]
        return others[-1] + 1 if others else 0

    @property
    def is_normalised(self) -> bool:
        return self.end < len(self.parts)

    @property
    def pooling(self) -> int | None:
        """Position of the pooling."""
        return next((i for i, part in enumerate(self.parts) if part.kind == "Pooling"), None)

    @property
    def poolings(self) -> list[str]:
        """What `Origin` calls the pooling, if we know it."""
        mode = "" if self.pooling is None else self.parts[self.pooling].mode
        ours = MODES.get(mode)
        return ["own"] if ours is None else ["own", f"{ours}+special" if ours == "mean" else ours]

    def width(self, place: int) -> int | None:
        """Width of the vectors before the module at this place."""
        known = [part.width for part in self.parts[:place] if part.width is not None]
        return known[-1] if known else None


Planned = list[tuple[int | None, Layer | None]]  # a module's position, and what replaces it


def planned(model: Model, repair: Repair) -> Planned:
    """The modules of the repaired model: kept ones, new ones, and replaced ones."""
    if {part.kind for part in model.parts} & {"Router", "Asym"}:
        raise InputError(
            "model must have one tower, got a Router. Repair its towers before you join them."
        )
    towers = getattr(repair, "repairs_", None)  # of a chain, a list
    if isinstance(towers, Mapping):
        place, layers = _routed(model, repair, towers)
    else:
        place, layers = _placed(model, repair)
    kept: Planned = [(i, None) for i in range(len(model.parts))]
    own = model.parts[place - 1].dense if place else None
    one = None if own is None else absorbed(layers, own, repair.moments_)
    added: Planned = [(None, layer) for layer in layers]
    if one is not None:
        return [*kept[: place - 1], (place - 1, one), *added[1:], *kept[place:]]
    return [*kept[:place], *added, *kept[place:]]


def _placed(model: Model, repair: Repair) -> tuple[int, list[Layer]]:
    return _of_tokens(model, repair) if repair.level_ == "token" else _of_sentences(model, repair)


def _routed(model: Model, repair: Repair, towers: Mapping[Any, Repair]) -> tuple[int, list[Layer]]:
    """Place and layer of repairs of queries and of documents."""
    if set(towers) != {"query", "document"}:
        raise InputError(
            "repair must have the groups 'query' and 'document', which sentence-transformers "
            f"encodes apart, got {brief(sorted(map(str, towers)))}. Export repairs_[group]."
        )
    places, routes = set(), {}
    for name, one in towers.items():
        tower = copy.copy(one)
        tower.level_, tower.origin_ = repair.level_, repair.origin_
        place, layers = _placed(model, tower)
        if any(isinstance(layer, Coded) for layer in layers):
            raise InputError(
                f"repair must be affine to be routed to queries or documents, got {brief(one)}. "
                "Export repairs_[group]."
            )
        places.add(place)
        n_features = int(one.n_features_in_)
        routes[name] = tuple(layers) or (Dense(np.eye(n_features), np.zeros(n_features)),)
    if len(places) > 1:
        raise InputError(
            "repair must be fitted on vectors of one kind, got queries and documents of which "
            "only one group is normalised. Fit again."
        )
    return places.pop(), [Routes(routes)]


def _of_sentences(model: Model, repair: Repair) -> tuple[int, list[Layer]]:
    """Place and layers of a repair of sentence vectors."""
    n_features = int(repair.n_features_in_)
    place = len(model.parts)
    if not _fitted_after(model, repair):
        place = model.end
    if (pooled := repair.origin_.pooling) not in (None, "own") and model.pooling is not None:
        place = model.pooling + 1
    width = model.width(place)
    expected = min(width or n_features, model.truncate_dim or width or n_features)
    if n_features != expected:
        raise InputError(
            f"repair must be for the model's vectors of width {expected}, got one for "
            f"{n_features}. Fit it on vectors of this model."
        )
    steps = repair.steps()
    if all(isinstance(step, Multiply | Normalize) for step in steps) and place > model.end:
        place = model.end  # lengths don't matter to it
    unit_rows = place > model.end and n_features == (width or n_features)
    unit_result = model.is_normalised and place >= model.end
    layers = as_layers(repair, unit_rows=unit_rows, unit_result=unit_result)
    layers = widened(layers, n_features, width or n_features)
    if unit_result:
        ends = bool(layers) and isinstance(layers[-1], Normalize)
        if place > model.end and layers and not ends:
            layers.append(Normalize())
        elif place == model.end and ends:
            layers.pop()
    n_out = len(repair.get_feature_names_out())
    if n_out != n_features and any(p.kind != "Normalize" for p in model.parts[place:]):
        raise InputError(
            f"repair must keep the width {n_features}, which modules after it need, got {n_out}. "
            f"Fit it on what the model's encode returns; it was fitted after pooling {pooled!r}."
        )
    return place, layers


def _fitted_after(model: Model, repair: Repair) -> bool:
    """Whether the repair was fitted after the model's final Normalize."""
    said = repair.origin_.normalised
    if said is not None or not model.is_normalised:
        return bool(said)
    moments = repair.moments_
    if moments is None or model.truncate_dim is not None:
        return True
    squares = float(np.trace(moments.scatter)) / moments.weight + float(moments.mean @ moments.mean)
    return abs(squares - 1) <= UNIT


def _of_tokens(model: Model, repair: Repair) -> tuple[int, list[Layer]]:
    """Place and layers of a repair of token vectors."""
    if model.parts[0].kind == "StaticEmbedding":
        raise InputError(
            "repair must be of sentence vectors, got one of token vectors, which are a static "
            "model's table. Use the export for static tables."
        )
    if [part.kind for part in model.parts[:2]] != ["Transformer", "Pooling"]:
        kinds = ", ".join(part.kind for part in model.parts)
        raise InputError(
            f"model must pool what its Transformer gives for a token-level repair, got {kinds}. "
            "Fit on sentence vectors."
        )
    mode, n_features = model.parts[1].mode, int(repair.n_features_in_)
    _expect_tokens(model, repair, mode)
    if n_features != (width := model.width(1)):
        raise InputError(
            f"repair must be for token vectors of width {width}, got one for {n_features}. Fit it "
            "on vectors of this model."
        )
    one_token = mode in ("cls", "lasttoken")
    unit_result = one_token and model.is_normalised and model.end == 2
    layers = as_layers(repair, unit_rows=False, unit_result=unit_result)
    affine = all(isinstance(layer, Dense) for layer in layers)
    after = one_token or (affine and mode in OF_ROWS)
    if not affine and not one_token:
        layers = [Coded(tuple(repair.steps()))]
    if len(repair.get_feature_names_out()) != n_features and (not after or model.end > 2):
        raise InputError(
            f"repair must keep the width {n_features}, which modules after it need, got "
            f"{len(repair.get_feature_names_out())}. Fit on sentence vectors."
        )
    if after:
        if unit_result and layers and isinstance(layers[-1], Normalize):
            layers.pop()
        return 2, layers
    return 1, [_on_tokens(layer) for layer in layers]


def _expect_tokens(model: Model, repair: Repair, mode: str) -> None:
    """Raise unless the pooled tokens are those that the repair was fitted on."""
    fitted, layer = repair.origin_.pooling, repair.origin_.layer
    if layer is not None and model.n_layers is not None and layer != model.n_layers:
        raise InputError(
            f"repair must be of the last layer, {model.n_layers}, got layer {layer}. Fit again."
        )
    if fitted in (*model.poolings, "tokens+special") or (
        fitted is None and (model.own_pooling or mode != "mean")
    ):
        return
    raise InputError(
        "repair must be fitted on the tokens that sentence-transformers pools, special ones "
        f"included, got {fitted or 'tokens of a model without its own pooling'}. Fit with special "
        "tokens, or on sentence vectors."
    )


def _on_tokens(layer: Layer) -> Layer:
    if isinstance(layer, Dense):
        return Dense(layer.weight, layer.bias, TOKENS)
    assert isinstance(layer, Coded)
    return Coded(layer.steps, TOKENS)


def warn_of(model: Model, plan: Planned, repair: Repair) -> None:
    """Warn where the vectors are not those fitted on, and where a server would differ.

    A server pools, applies Dense, and normalises at the end.
    """
    fitted = repair.origin_
    same = fitted.pooling in model.poolings or repair.level_ == "token"  # which is refused else
    declared = Origin(
        model=None if model.name is None else short_name(model.name),
        layer=model.n_layers,
        pooling=fitted.pooling if same else model.poolings[-1],
        prompt=model.prompt,
    )
    if differs := origin_warning(declared, fitted):
        warn(f"sentence_transformers: {differs}")
    if any(isinstance(layer, Coded) for _, layer in plan):
        warn(
            f"sentence_transformers: this repair is no Dense module but code, {CODE}: load the "
            "model with trust_remote_code=True. Servers (TEI, vLLM) cannot run it; an affine "
            "repair avoids this."
        )
        return
    if any(isinstance(layer, Routes) for _, layer in plan):
        warn(
            "sentence_transformers: queries and documents are repaired apart, by a Router, which "
            "servers (TEI, vLLM) don't run. Use encode_query and encode_document."
        )
        return
    kinds = [type(layer).__name__ if i is None else model.parts[i].kind for i, layer in plan]
    before = False  # a Normalize
    for (_, layer), kind in zip(plan, kinds, strict=True):
        if before and isinstance(layer, Dense):
            mode = "" if model.pooling is None else model.parts[model.pooling].mode
            pool = MODES.get(mode, "mean")
            warn(
                "sentence_transformers: servers (TEI, vLLM) normalise only at the end, so they "
                "would differ from this model, which also does before its new Dense. To avoid "
                "this, fit on vectors from before the model's Normalize: "
                f"Encoder(model, pool='{pool}', special_tokens=True)."
            )
            return
        before = before or kind == "Normalize"
