"""Small models with random weights, saved as transformers and sentence-transformers save theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "log", ",", ".", "!"]
WORDS += ["play", "##ing", "##ed", "new", "york", "uber", "sun", "moon"]
TEXTS = [
    "The cat sat on the mat.",
    "A dog ran!",
    "the dog played under a log , the cat sat on the log , the moon played",
    "playing",
    "New York, new moon: the sun ran under the mat.",
]
SIZES = {"vocab_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}


def torch_and_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return torch, transformers


def word_piece(folder: Path, max_length: int = 32) -> None:
    """A lower-casing WordPiece tokenizer of 32 tokens, which begins texts with [CLS]."""
    transformers = pytest.importorskip("transformers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *WORDS]
    vocabulary += [f"[unused{i}]" for i in range(SIZES["vocab_size"] - len(vocabulary))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    kind = transformers.BertTokenizerFast
    tokenizer = kind(str(folder / "vocab.txt"), do_lower_case=True, model_max_length=max_length)
    tokenizer.save_pretrained(folder)


def bert(folder: Path, max_length: int = 32, seed: int = 0) -> Path:
    """An encoder of three layers and 16 features, with its head for masked tokens."""
    torch, transformers = torch_and_transformers()
    torch.manual_seed(seed)
    word_piece(folder, max_length)
    config = transformers.BertConfig(
        **SIZES, hidden_size=16, intermediate_size=24, max_position_embeddings=max_length
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def headless(folder: Path) -> Path:
    """An encoder that was saved without a head."""
    _, transformers = torch_and_transformers()
    word_piece(folder)
    config = transformers.BertConfig(**SIZES, hidden_size=16, intermediate_size=24)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def sentence_bert(folder: Path, mode: str = "mean", max_length: int = 12) -> Path:
    """The same encoder with pooling, a dense layer and normalisation after it."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    bert(folder / "plain")
    transformer = modules.Transformer(str(folder / "plain"), max_seq_length=max_length)
    pooling = modules.Pooling(16, pooling_mode=mode)
    parts = [transformer, pooling, modules.Dense(16, 8), modules.Normalize()]
    whole = SentenceTransformer(modules=parts, device="cpu")
    whole.save(str(folder / "sentence"))
    return folder / "sentence"


def byte_level(folder: Path) -> None:
    """A byte-level tokenizer without special tokens, which tells " cat" from "cat"."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(TEXTS).lower()] * 3 + ["mat"] * 9, trainer)
    kind = transformers.PreTrainedTokenizerFast
    kind(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)


def llama(folder: Path, tied: bool = True) -> Path:
    """A causal decoder without a padding token."""
    _, transformers = torch_and_transformers()
    folder.mkdir(parents=True)
    byte_level(folder)
    config = transformers.LlamaConfig(
        **SIZES | {"vocab_size": 320},
        hidden_size=16,
        intermediate_size=24,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        pad_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def t5(folder: Path) -> Path:
    """An encoder-decoder."""
    _, transformers = torch_and_transformers()
    word_piece(folder)
    config = transformers.T5Config(
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def sentence_settings(folder: Path, **settings: object) -> None:
    """Change what a sentence-transformers folder says of itself."""
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
