"""A sentence-transformers model with a repair in it: as a folder, or in memory."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from isotropy import stored
from isotropy.errors import InputError, InputTypeError, brief, needs, public, warn
from isotropy.export._folders import card, copied, expect_outside, local, put, put_card, put_json
from isotropy.export._layers import (
    SENTENCE,
    TOKENS,
    Coded,
    Dense,
    Layer,
    absorbed,
    as_layers,
    single,
    widened,
)
from isotropy.models import (
    MODES,
    default_prompt,
    pooling_mode,
    read_json,
    read_modules,
    static_folder,
)
from isotropy.repairs import Origin, Repair, origin_warning
from isotropy.repairs import base as repairs_base
from isotropy.repairs.steps import Multiply, Normalize, named
from isotropy.writing import quoted

LONG_LIVED = "sentence_transformers.models."  # type names that every version and server knows
KNOWN = {"Transformer", "Pooling", "Dense", "Normalize", "StaticEmbedding", "LayerNorm", "Dropout"}
KNOWN |= {"WordEmbeddings", "WordWeights", "WeightedLayerPooling", "BoW", "CNN", "LSTM"}
IDENTITY = "torch.nn.modules.linear.Identity"
CODE, CODED = "modeling_isotropy.py", "FeatureRepair"
WEIGHTS = "model.safetensors"
UNIT = 1e-3  # how far from one the mean squared norm of unit rows may be
OF_ROWS = {"mean", "weightedmean", "cls", "lasttoken"}  # poolings that an affine map can follow


@public
def sentence_transformers(
    model: Any, repair: Repair, out: Any = None, *, overwrite: bool = False
) -> Any:
    """A sentence-transformers model whose `encode` gives repaired vectors.

    Affine repairs become `Dense` modules, which every version of sentence-transformers loads, and
    servers too. Cluster removal needs `trust_remote_code=True`. If the model ends with Normalize,
    so does the new one.

    Parameters
    ----------
    model : path, str or SentenceTransformer
        The model's folder, its name on the hub, or the loaded model.
    repair : fitted repair
        Of the vectors that the model's `encode` gives; if their length is not one although the
        model ends with Normalize, of those before it. `level_` "token": of token vectors, before
        pooling.
    out : path, optional
        The folder to write; it appears when it is complete. Files are copied as they are, except
        for modules.json and the model card. Neither torch nor sentence-transformers is needed.
    overwrite : bool
        Replace a folder that isotropy wrote.

    Returns
    -------
    SentenceTransformer or None
        A model with the same modules and new ones, if `model` is a loaded one; the given one is
        not changed. None if a folder was written.

    Examples
    --------
    ::

        isotropy.export.sentence_transformers("all-MiniLM-L6-v2", repair, "repaired-model")
    """
    if not isinstance(repair, Repair):
        raise InputTypeError(f"repair must be a fitted repair, got {brief(repair)}.")
    if isinstance(model, (str, os.PathLike)):
        if out is None:
            raise InputError("out must be the folder to write if model is a path, got None.")
        _write(model, repair, out, overwrite)
        return None
    if out is not None:
        raise InputError(
            f"model must be a folder or a name on the hub if out is given, got {brief(model)}. "
            "Leave out `out`, and save the model that is returned."
        )
    return _loaded(model, repair)


# What the model is made of


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
    end: int = field(init=False)  # number of modules before the final Normalize

    def __post_init__(self) -> None:
        kinds = [part.kind for part in self.parts]
        while kinds and kinds[-1] == "Normalize":
            kinds.pop()
        object.__setattr__(self, "end", len(kinds))

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


def _entries(folder: Path) -> tuple[list[dict[str, Any]], bool]:
    """What modules.json lists, or what sentence-transformers makes of a plain transformer."""
    path = folder / "modules.json"
    if path.is_file():
        found = read_modules(path)
        for entry in found:
            parts = Path(str(entry.get("path", ""))).parts
            if ".." in parts or os.path.isabs(str(entry.get("path", ""))):
                raise InputError(f"{quoted(path)} must list paths in the folder, got {parts}.")
        return found, True
    if static_folder(folder) is not None:
        raise InputError(
            f"model must have modules.json, got {quoted(folder)}, a folder of model2vec. Use the "
            "export for static tables."
        )
    if not (folder / "config.json").is_file():
        raise InputError(f"model must have modules.json or config.json, got {quoted(folder)}.")
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    return [{"path": path, "type": LONG_LIVED + kind} for kind, path in kinds.items()], False


def _of_folder(name: str, folder: Path, entries: list[dict[str, Any]], own: bool) -> Model:
    path = folder / "config_sentence_transformers.json"
    settings = path if path.is_file() else None
    truncated = None if settings is None else read_json(settings).get("truncate_dim")
    if own:
        parts = [_part(folder / entry["path"], _kind(entry)) for entry in entries]
    else:
        width = _width(read_json(folder / "config.json"), folder)
        parts = [Part("Transformer", width), Part("Pooling", width, "mean")]
    first = folder / entries[0]["path"] / "config.json"
    n_layers = read_json(first).get("num_hidden_layers") if first.is_file() else None
    return Model(parts, name, default_prompt(settings), truncated, own, n_layers)


def _kind(entry: dict[str, Any]) -> str:
    return str(entry.get("type")).rsplit(".", 1)[-1]


def _part(folder: Path, kind: str) -> Part:
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    if kind == "Transformer":
        return Part(kind, _width(config, folder))
    if kind == "StaticEmbedding":
        return Part(kind, _table_width(folder / WEIGHTS))
    plain = kind == "Dense" and _is_plain(config)
    return _described(kind, config, _read_dense(folder / WEIGHTS) if plain else None)


def _read_dense(path: Path) -> Dense | None:
    """The matrix and bias of a Dense module; None if its weights are in another format."""
    if not path.is_file():
        return None
    with _opened(path) as file:
        if any(entry.dtype not in ("F32", "F64") for entry in file.entries.values()):
            return None
        found = {name: array.astype(np.float64) for name, array in file.arrays().items()}
    weight, bias = found.get("linear.weight"), found.get("linear.bias")
    if weight is None:
        return None
    return Dense(weight, np.zeros(len(weight)) if bias is None else bias)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[stored.Safetensors]:
    try:
        with stored.open_safetensors(path) as file:
            yield file
    except InputError as error:
        raise InputError(f"{quoted(path)} must be a safetensors file ({error}).") from error


def _described(kind: str, config: dict[str, Any], dense: Dense | None) -> Part:
    """A module with these settings."""
    if kind == "Pooling":
        mode = pooling_mode(config)
        width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
        single = mode in (*OF_ROWS, "max", "mean_sqrt_len", "mean_sqrt_len_tokens")
        return Part(kind, width if single else None, mode)
    return Part(kind, config.get("out_features"), dense=dense)


def _is_plain(config: dict[str, Any]) -> bool:
    """Whether a Dense module is a matrix and a bias of sentence vectors, without more."""
    names = (config.get("module_input_name"), config.get("module_output_name"))
    of_sentences = all(name in (None, SENTENCE) for name in names)
    plain = config.get("activation_function") == IDENTITY and not config.get("use_residual")
    return of_sentences and plain


def _width(config: Any, folder: Path) -> int:
    width = config.get("hidden_size", config.get("d_model")) if isinstance(config, dict) else None
    if not isinstance(width, int):
        raise InputError(f"{quoted(folder)} must be a model of texts with hidden_size, got none.")
    return width


def _table_width(path: Path) -> int | None:
    with _opened(path) as file:
        tables = [file.entries.get(name) for name in ("embedding.weight", "embeddings")]
        return next((table.shape[-1] for table in tables if table), None)


# Where the repair goes


Planned = list[tuple[int | None, Layer | None]]  # a module's position, and what replaces it


def _planned(model: Model, repair: Repair) -> Planned:
    """The modules of the repaired model: kept ones, new ones, and replaced ones."""
    kinds = {part.kind for part in model.parts}
    if kinds & {"Router", "Asym"}:
        raise InputError(
            "model must have one tower, got a Router. Export a repair for each of its towers."
        )
    place, layers = _of_tokens(model, repair) if repair.level_ == "token" else _after(model, repair)
    for layer in layers:
        if isinstance(layer, Dense):
            single(layer.weight), single(layer.bias)
    kept: Planned = [(i, None) for i in range(len(model.parts))]
    own = model.parts[place - 1].dense if place else None
    one = None if own is None else absorbed(layers, own, repair.moments_)
    added: Planned = [(None, layer) for layer in layers]
    if one is not None:
        return [*kept[: place - 1], (place - 1, one), *added[1:], *kept[place:]]
    return [*kept[:place], *added, *kept[place:]]


def _after(model: Model, repair: Repair) -> tuple[int, list[Layer]]:
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
    layers = as_layers(repair, unit_rows=unit_rows, unit_result=model.is_normalised)
    layers = widened(layers, n_features, width or n_features)
    if model.is_normalised:
        ends = bool(layers) and isinstance(layers[-1], Normalize)
        if place > model.end and layers and not ends:
            layers.append(Normalize())
        elif place <= model.end and ends:
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


def _warn(model: Model, plan: Planned, repair: Repair) -> None:
    """Warn where the vectors are not those fitted on, and where a server would differ.

    A server pools, applies Dense, and normalises at the end.
    """
    fitted = repair.origin_
    same = fitted.pooling in model.poolings or repair.level_ == "token"  # which is refused else
    declared = Origin(
        model=model.name,
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


# As a folder


def _write(name: Any, repair: Repair, out: Any, overwrite: bool) -> None:
    folder = local(name)
    target = expect_outside(folder, out, overwrite)
    entries, own = _entries(folder)
    model = _of_folder(os.fspath(name), folder, entries, own)
    plan = _planned(model, repair)
    _warn(model, plan, repair)
    with copied(folder, target, overwrite) as part:
        if not own:
            put_json(part / "1_Pooling" / "config.json", _mean_pooling(model))
        listed = list(_placed(part, entries, plan))
        put_json(part / "modules.json", listed)
        put_card(part, repair, Modules=", ".join(map(_kind, listed)))


def _mean_pooling(model: Model) -> dict[str, Any]:
    """What sentence-transformers adds to a plain transformer."""
    return {"word_embedding_dimension": model.width(1), "pooling_mode_mean_tokens": True}


def _placed(folder: Path, entries: list[dict[str, Any]], plan: Planned) -> Iterator[dict[str, Any]]:
    """The entries of modules.json; what is new is written."""
    for number, (kept, layer) in enumerate(plan):
        place = {"idx": number, "name": str(number)}
        if kept is None:
            assert layer is not None
            kind = CODED if isinstance(layer, Coded) else type(layer).__name__
            path = f"{number}_{kind}"
            while (folder / path).exists():
                path += "_repair"
            yield place | {"path": path, "type": _type(kind)}
        else:
            entry, kind = entries[kept], _kind(entries[kept])
            path = entry["path"]
            known = kind in KNOWN and str(entry["type"]).startswith("sentence_transformers.")
            yield entry | place | ({"type": _type(kind)} if known else {})
        if layer is not None:
            _put_layer(folder / path, layer)


def _type(kind: str) -> str:
    return f"{Path(CODE).stem}.{kind}" if kind == CODED else LONG_LIVED + kind


def _put_layer(folder: Path, layer: Layer) -> None:
    """Write the files of a module."""
    if isinstance(layer, Dense):
        tensors = {"linear.weight": single(layer.weight), "linear.bias": single(layer.bias)}
        (folder / "pytorch_model.bin").unlink(missing_ok=True)  # of a layer that is replaced
        put_json(folder / "config.json", _dense_settings(layer))
        put(folder / WEIGHTS, save(tensors))
    elif isinstance(layer, Coded):
        steps = named(layer.steps)
        put_json(
            folder / "config.json",
            {"steps": [kind for kind, _ in steps], "features": layer.features},
        )
        arrays = {
            f"steps.{i}.{name}": single(array)
            for i, (_, own) in enumerate(steps)
            for name, array in own.items()
        }
        put(folder / WEIGHTS, save(arrays))
        put(folder.parent / CODE, _code().read_bytes())
    else:
        put_json(folder / "config.json", {})


def _dense_settings(layer: Dense) -> dict[str, Any]:
    n_out, n_in = layer.weight.shape
    found = {"in_features": n_in, "out_features": n_out, "bias": True}
    found |= {"activation_function": IDENTITY}
    if layer.features != SENTENCE:  # versions before 5.2 know no other
        found |= {"module_input_name": layer.features, "module_output_name": layer.features}
    return found


def _code() -> Path:
    """The file that runs steps with nothing but torch."""
    return Path(repairs_base.__file__).with_name("module.py")


# In memory


def _loaded(model: Any, repair: Repair) -> Any:
    with needs("sentence_transformers", "sentence-transformers"):
        from sentence_transformers import SentenceTransformer
    if not isinstance(model, SentenceTransformer):
        raise InputTypeError(
            f"model must be a folder, a name on the hub or a SentenceTransformer, got "
            f"{brief(model)}."
        )
    modules = list(model.named_children())
    parts = [_of_module(module) for _, module in modules]
    known = Model(parts, truncate_dim=model.truncate_dim)
    plan = _planned(known, repair)
    _warn(known, plan, repair)
    like = next(model.parameters())
    found = copy.copy(model)  # with the same transformer
    found._modules, found.module_kwargs = {}, {}
    for number, (kept, layer) in enumerate(plan):
        if layer is None:
            assert kept is not None
            name, module = modules[kept]
            found.module_kwargs[str(number)] = (model.module_kwargs or {}).get(name, [])
        else:
            module = _module(layer).to(device=like.device, dtype=like.dtype)
        found._modules[str(number)] = module
    found.prompts = dict(model.prompts)
    found.model_card_data = copy.copy(model.model_card_data)
    found.model_card_data.register_model(found)
    if text := getattr(model, "_model_card_text", None):
        kinds = [type(module).__name__ for module in found._modules.values()]
        found._model_card_text = text + card(repair, Modules=", ".join(kinds))
    return found.eval()


def _of_module(module: Any) -> Part:
    kind = type(module).__name__
    if kind == "StaticEmbedding":
        return Part(kind, int(module.embedding_dim))
    if kind == "Transformer":
        names = ("get_embedding_dimension", "get_word_embedding_dimension")  # 6, 5
        width = next(getattr(module, name)() for name in names if hasattr(module, name))
        return Part(kind, int(width))
    config = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
    dense = None
    if kind == "Dense" and _is_plain(config):
        weight = module.linear.weight.detach().cpu().double().numpy()
        bias = module.linear.bias
        n_out = len(weight)
        dense = Dense(weight, np.zeros(n_out) if bias is None else bias.detach().cpu().numpy())
    return _described(kind, config, dense)


def _module(layer: Layer) -> Any:
    import torch
    from sentence_transformers.util import import_from_string

    if isinstance(layer, Normalize):
        return import_from_string(_type("Normalize"))()
    if isinstance(layer, Dense):
        found = import_from_string(_type("Dense"))(
            **_dense_settings(layer) | {"activation_function": torch.nn.Identity()},
            init_weight=torch.from_numpy(single(layer.weight)),
            init_bias=torch.from_numpy(single(layer.bias)),
        )
        return found.requires_grad_(False)
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "isotropy_repair")
        place.mkdir()
        shutil.copyfile(_code(), place / CODE)
        kind = get_class_from_dynamic_module(_type(CODED), os.fspath(place))
    return kind(named(layer.steps), layer.features)
