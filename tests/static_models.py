"""Static models as model2vec and sentence-transformers save theirs, from wordllama's table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

TEXTS = [
    "The cat sat on the mat.",
    "A dog ran!",
    "  playing   with  spaces ",
    "Größe, naïve, 漢字 and 🙂",
    "the moon " * 40,
    "x",
]


def wordllama():
    """(float32 table, path of the tokenizer)."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None:
        pytest.skip("wordllama is not installed")
    root = Path(spec.submodule_search_locations[0])
    weights = load_file(next(root.glob("weights/*_256.safetensors")))["embedding.weight"]
    return weights.astype(np.float32), next(root.glob("tokenizers/*.json"))


N_TOKENS = 3000


def small():
    """(float32 table, tokenizer's JSON) of some of wordllama's tokens and 16 dimensions.

    Kept are the first ones, and the characters that they are made of.
    """
    table, path = wordllama()
    settings = json.loads(path.read_text("utf-8"))
    model = settings["model"]
    listed = sorted(model["vocab"], key=model["vocab"].get)
    letters = {letter for token in listed[259:2900] for letter in token}
    kept = [t for i, t in enumerate(listed) if i < 2900 or t in letters][:N_TOKENS]
    rows = [model["vocab"][token] for token in kept]
    known = model["vocab"] = {token: i for i, token in enumerate(kept)}
    pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
    model["merges"] = [[a, b] for a, b in pairs if a in known and b in known and a + b in known]
    return np.ascontiguousarray(table[rows, :16]), json.dumps(settings)


def model2vec(folder, normalize=True, weights=None, mapping=None, modules=False, **tensors):
    """A folder as model2vec's save_pretrained writes it."""
    table, tokenizer = small()
    folder.mkdir(parents=True)
    tensors = {"embeddings": table} | tensors
    tensors |= {} if weights is None else {"weights": weights}
    tensors |= {} if mapping is None else {"mapping": mapping}
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(tokenizer, "utf-8")
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": normalize}
    (folder / "config.json").write_text(json.dumps(config))
    if modules:
        parts = ["StaticEmbedding", *(["Normalize"] if normalize else [])]
        paths = [".", "1_Normalize"]
        listed = [
            {
                "idx": i,
                "name": str(i),
                "path": paths[i],
                "type": f"sentence_transformers.models.{p}",
            }
            for i, p in enumerate(parts)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def static_embedding(folder, normalize=False):
    """A folder as sentence-transformers saves a model of one StaticEmbedding."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules
    from tokenizers import Tokenizer

    table, tokenizer = small()
    parts = [modules.StaticEmbedding(Tokenizer.from_str(tokenizer), embedding_weights=table)]
    parts += [modules.Normalize()] if normalize else []
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    return folder


def formula(folder, texts, normalize):
    """model2vec's formula in float64: mean of weights[t] * embeddings[mapping[t]], known t only."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    unknown = tokenizer.token_to_id("<unk>")
    rows = []
    for text in texts:
        ids = [i for i in tokenizer.encode(text, add_special_tokens=False).ids if i != unknown]
        ids = np.array(ids[:512], dtype=int)
        mapped = tensors["mapping"][ids] if "mapping" in tensors else ids
        found = tensors["embeddings"][mapped].astype(np.float64)
        if "weights" in tensors:
            found = found * tensors["weights"][ids, None]
        rows.append(found.mean(axis=0) if len(ids) else np.zeros(found.shape[1]))
    rows = np.stack(rows)
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-32) if normalize else rows
