"""A sentence-transformers model with a repair in it: as a folder, or in memory."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from isotropy import stored
from isotropy.errors import InputError, InputTypeError, brief, needs, public
from isotropy.export._folders import card, copied, expect_outside, local, put, put_card, put_json
from isotropy.export._layers import SENTENCE, Coded, Dense, Layer, Routes, single
from isotropy.export._plan import CODE, OF_ROWS, Model, Part, Planned, planned, warn_of
from isotropy.models import default_prompt, pooling_mode, read_json, read_modules, static_folder
from isotropy.repairs import Repair
from isotropy.repairs import base as repairs_base
from isotropy.repairs.steps import Normalize, named
from isotropy.writing import quoted

LONG_LIVED = "sentence_transformers.models."  # type names that every version and server knows
KNOWN = {"Transformer", "Pooling", "Dense", "Normalize", "StaticEmbedding", "LayerNorm", "Dropout"}
KNOWN |= {"WordEmbeddings", "WordWeights", "WeightedLayerPooling", "BoW", "CNN", "LSTM"}
ROUTED = {"default_route": "document", "allow_empty_key": True}  # of Router.for_query_document
IDENTITY = "torch.nn.modules.linear.Identity"
CODED = "FeatureRepair"
WEIGHTS = "model.safetensors"
WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")  # BERT, T5, DistilBERT, GPT-2
WIDE = {"SubtractScaled"}  # kinds of steps that are run in float64


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


def _entries(folder: Path) -> tuple[list[dict[str, Any]], bool]:
    """What modules.json lists, or what sentence-transformers makes of a plain transformer."""
    path = folder / "modules.json"
    if path.is_file():
        found = read_modules(path)
        for entry in found:
            place = entry.get("path")
            if not isinstance(place, str) or ".." in Path(place).parts or os.path.isabs(place):
                raise InputError(
                    f"{quoted(path)} must list paths in the folder, got {brief(place)}."
                )
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
    if own:
        parts = [_part(folder / entry["path"], _kind(entry)) for entry in entries]
    else:
        width = _width(_settings(folder / "config.json"), folder)
        parts = [Part("Transformer", width), Part("Pooling", width, "mean")]
    whole = folder / "config_sentence_transformers.json"
    return Model(
        parts,
        name=name,
        prompt=default_prompt(whole if whole.is_file() else None),
        truncate_dim=_settings(whole).get("truncate_dim"),
        own_pooling=own,
        n_layers=_settings(folder / entries[0]["path"] / "config.json").get("num_hidden_layers"),
    )


def _settings(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing if there is none."""
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{quoted(path)} must hold an object, got {brief(found)}.")
    return found


def _kind(entry: dict[str, Any]) -> str:
    return str(entry.get("type")).rsplit(".", 1)[-1]


def _part(folder: Path, kind: str) -> Part:
    config = _settings(folder / "config.json")
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
        one = mode in (*OF_ROWS, "max", "mean_sqrt_len", "mean_sqrt_len_tokens")
        return Part(kind, width if one else None, mode)
    return Part(kind, config.get("out_features"), dense=dense)


def _is_plain(config: dict[str, Any]) -> bool:
    """Whether a Dense module is a matrix and a bias of sentence vectors, without more."""
    names = (config.get("module_input_name"), config.get("module_output_name"))
    of_sentences = all(name in (None, SENTENCE) for name in names)
    plain = config.get("activation_function") == IDENTITY and not config.get("use_residual")
    return of_sentences and plain


def _width(config: dict[str, Any], folder: Path) -> int:
    width = next((config[name] for name in WIDTHS if name in config), None)
    if not isinstance(width, int):
        raise InputError(f"{quoted(folder)} must be a model of texts with hidden_size, got none.")
    return width


def _table_width(path: Path) -> int | None:
    with _opened(path) as file:
        tables = [file.entries.get(name) for name in ("embedding.weight", "embeddings")]
        return next((table.shape[-1] for table in tables if table), None)


# As a folder


def _write(name: Any, repair: Repair, out: Any, overwrite: bool) -> None:
    folder = local(name)
    target = expect_outside(folder, out, overwrite)
    entries, own = _entries(folder)
    model = _of_folder(os.fspath(name), folder, entries, own)
    plan = planned(model, repair)
    warn_of(model, plan, repair)
    with copied(folder, target, overwrite) as part:
        if not own:
            put_json(part / "1_Pooling" / "config.json", _mean_pooling(model))
        listed = list(_placed(part, entries, plan))
        put_json(part / "modules.json", listed)
        put_card(part, repair, Modules=", ".join(map(_kind, listed)))


def first_new(name: Any, repair: Repair) -> tuple[int, int | None]:
    """Place of the first module that the export adds, and the width of what it is given.

    Raises an InputError if the vectors behind it are not just repaired, and perhaps normalised.
    """
    folder = local(name)
    entries, own = _entries(folder)
    model = _of_folder(os.fspath(name), folder, entries, own)
    plan = planned(model, repair)
    place = next((i for i, (_, layer) in enumerate(plan) if layer is not None), len(plan))
    kinds = [model.parts[kept].kind for kept, _ in plan[place:] if kept is not None]
    alone = set(kinds) <= {"Normalize"} or repair.level_ == "token"
    if repair.grouped or not alone or not all(k is None or l is None for k, l in plan):
        raise InputError(
            "verify can't be used where a module of the model's own takes up the repair or follows "
            "it, nor for groups. Compare encode of both models with `transform` instead."
        )
    return place, model.width(place)


def _mean_pooling(model: Model) -> dict[str, Any]:
    """What sentence-transformers adds to a plain transformer."""
    return {"word_embedding_dimension": model.width(1), "pooling_mode_mean_tokens": True}


def _placed(folder: Path, entries: list[dict[str, Any]], plan: Planned) -> Iterator[dict[str, Any]]:
    """The entries of modules.json; what is new is written."""
    for number, (kept, layer) in enumerate(plan):
        place = {"idx": number, "name": str(number)}
        if kept is None:
            assert layer is not None
            kind = _named(layer)
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


def _named(layer: Layer) -> str:
    names = {Coded: CODED, Routes: "Router"}
    return names.get(type(layer), type(layer).__name__)


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
            f"steps.{i}.{name}": array if kind in WIDE else single(array)
            for i, (kind, own) in enumerate(steps)
            for name, array in own.items()
        }
        put(folder / WEIGHTS, save(arrays))
        put(folder.parent / CODE, _code().read_bytes())
    elif isinstance(layer, Routes):
        structure = {
            route: [f"{route}_{i}_{_named(own)}" for i, own in enumerate(layers)]
            for route, layers in layer.layers.items()
        }
        types = {
            name: _type(name.rsplit("_", 1)[1]) for names in structure.values() for name in names
        }
        put_json(
            folder / "router_config.json",
            {"types": types, "structure": structure, "parameters": ROUTED},
        )
        for route, layers in layer.layers.items():
            for name, own in zip(structure[route], layers, strict=True):
                _put_layer(folder / name, own)
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
    plan = planned(known, repair)
    warn_of(known, plan, repair)
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

    if isinstance(layer, Routes):
        routes = {route: [_module(own) for own in layers] for route, layers in layer.layers.items()}
        return import_from_string(_type("Router"))(routes, **ROUTED)
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
