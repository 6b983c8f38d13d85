"""Experiments of the cluster-based paper on what clusters and their directions encode."""

from __future__ import annotations

import collections
import gzip
import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import euclidean_distances, pairwise_distances_argmin

from isotropy.linalg import Floats
from isotropy.models import Float32Array, Span, Text, plain_text
from isotropy.models.tokens import is_punctuation
from isotropy.papers import figures
from isotropy.papers.cluster_shared import (
    BASELINE,
    CLUSTER,
    DB,
    PAPER,
    QUICK_SIZES,
    SETTINGS,
    SIZES,
    SM,
    components,
    drawn,
    repaired,
    seeds_of,
    sizes_for,
    sizes_note,
)
from isotropy.papers.experiment import (
    Findings,
    Layout,
    Record,
    experiment,
    matching,
    over_seeds,
    published,
    record,
)
from isotropy.papers.settings import BOTH_SIGNS, ONE_SIGN, Settings, isotropies
from isotropy.repairs import ClusterRemoval

Integers = NDArray[np.int64]
WORD = re.compile(r"\w+|[^\w\s]")
SAME, CHANCE = "from the same group", "expected by chance"


class Token(NamedTuple):
    """A token of a text: the number of the text, its piece of it, and the word it is part of."""

    text: int
    piece: str
    word: str


def read_tokens(
    settings: Settings, model: str, texts: Sequence[Text]
) -> tuple[Float32Array, list[Token]]:
    """The rows of all tokens of the texts, last layer, and what each stands for in lower case."""
    encoder = settings.encoder(model)
    encodings, kept = encoder.tokenized(texts)
    found = []
    plain = map(plain_text, texts)
    for number, (text, encoding, places) in enumerate(zip(plain, encodings, kept, strict=True)):
        words = list(WORD.finditer(text))
        ends = np.array([word.end() for word in words])
        for start, end in encoding.offsets[places].tolist():
            piece = text[start:end].strip()
            first = end - len(text[start:end].lstrip())
            inside = words[min(int(np.searchsorted(ends, first, "right")), len(words) - 1)]
            found.append(Token(number, piece.lower(), inside.group().lower()))
    return encoder.tokens(list(texts)).rows, found


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from (line.rstrip("\n") for line in file)


def _neighbours(settings: Settings, records: list[Record]) -> Findings:
    series = {
        f"{model}, {setting}": {
            f'"{one["token"]}"': one["value"]
            for one in matching(records, model=model, setting=setting, measure=SAME)
        }
        for model in dict.fromkeys(one["model"] for one in records)
        for setting in (BASELINE, CLUSTER)
    }
    figure = figures.bars(series, "nearest neighbours from the same group")
    figure.update_xaxes(title_text="token")
    figure.update_yaxes(tickformat=".1%", rangemode="tozero")
    return Findings(figures={"structure": figure})


@experiment(
    PAPER,
    "structure",
    shows="figure 3",
    title="Punctuation and stop words encode the structure of sentences",
    claim='Nearest neighbours of periods, commas, "the" and "of" come from sentences of the same '
    "structure; they do so less after removing the dominant directions of clusters.",
    data=("structure",),
    models=(DB, SM),
    minutes=3,
    seeds=5,
    options={
        "sizes": SIZES, "tokens": [".", ",", "the", "of"], "n_groups": 200, "n_sentences": 6,
        "n_neighbours": 5,
    },
    quick={"sizes": QUICK_SIZES, "n_groups": 8, "n_sentences": 3, "tokens": [".", "the"]},
    layouts=(Layout(("model", "token"), ("setting", "measure"), {SAME: ".1%", CHANCE: ".1%"}),),
    conclude=_neighbours,
    remarks=(
        "The groups of structurally equal sentences that the paper used are not public. Here a "
        "group is six sentences of the same source with equal length and equal counts of each "
        "syntactic relation.",
    ),
)  # fmt: skip
def structure(settings: Settings, model: str) -> Findings:
    """200 groups of six sentences with the same structure and different content. For each
    occurrence of a token in them: the share of its five nearest neighbours (Euclidean, among the
    occurrences of the same token in other sentences) that come from the same group, in the last
    layer, before and after removing the dominant directions of clusters fitted on all tokens of
    these sentences. Mean over clusterings with different seeds.
    """
    options = settings.options
    groups = _groups(settings.file("structure", "sentences"), options["n_sentences"])
    groups = random.Random(0).sample(groups, min(options["n_groups"], len(groups)))
    texts = [text for group in groups for text in group]
    rows, tokens = read_tokens(settings, model, texts)
    sizes = sizes_for(settings, model)
    spaces = {
        setting: [repaired(rows, setting, sizes, seed) for seed in seeds_of(settings, setting)]
        for setting in (BASELINE, CLUSTER)
    }
    found = []
    for wanted in options["tokens"]:
        places = np.array([i for i, token in enumerate(tokens) if token.piece == wanted])
        texts_of = np.array([tokens[i].text for i in places])
        for setting, versions in spaces.items():
            shares = [
                same_group(one[places], texts_of, options["n_sentences"], options["n_neighbours"])
                for one in versions
            ]
            keys = {"n": len(places), "token": wanted, "setting": setting}
            found.append(over_seeds([share for share, _ in shares], measure=SAME, **keys))
        found.append(record(shares[0][1], measure=CHANCE, **keys | {"setting": "neighbours"}))
    return Findings(found, notes=[sizes_note(settings, model)])


def _groups(path: Path, n_sentences: int) -> list[list[str]]:
    """Groups of that many sentences with equal length and counts of relations."""
    lines = _lines(path)
    head = next(lines).split("\t")
    counted = [i for i, name in enumerate(head) if name == "length" or name.endswith("-count")]
    found: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        cells = line.split("\t")
        key = tuple(cells[i] for i in counted)
        found.setdefault(key, []).append(cells[head.index("sent")])
    return [group[:n_sentences] for group in found.values() if len(group) >= n_sentences]


def same_group(
    rows: Any, texts: Integers, n_sentences: int, n_neighbours: int
) -> tuple[float, float]:
    """Share of each row's nearest neighbours that are from its group, and of all it could have.

    Texts are numbered so that n_sentences in a row are a group; a text's own rows don't count.
    """
    groups = texts // n_sentences
    distances = euclidean_distances(np.asarray(rows, dtype=np.float64))
    own = texts[:, None] == texts
    distances[own] = math.inf
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :n_neighbours]
    share = (groups[nearest] == groups[:, None]).mean()
    alike = ((groups[:, None] == groups) & ~own).sum(axis=1) / (~own).sum(axis=1)
    return float(share), float(alike.mean())


class Occurrence(NamedTuple):
    """A verb in its sentence, with its sense and its form."""

    lemma: str
    sense: str
    form: str
    span: Span


CONDITIONS = {  # of two occurrences of a verb: same form, same sense
    "same tense, same meaning": (True, True),
    "same tense, different meaning": (True, False),
    "different tense, same meaning": (False, True),
}
BEFORE, AFTER = "as they are", "without dominant directions"


@experiment(
    PAPER,
    "tense",
    shows="table 4",
    title="Tense and meaning of verbs",
    claim="Verbs of the same meaning in another tense are farther apart than verbs of another "
    "meaning in the same tense; removing the dominant directions of clusters reverses that.",
    data=("semcor",),
    models=(DB, SM),
    minutes=20,
    seeds=5,
    options={"sizes": SIZES, "n_least": 10, "n_most": 25},
    quick={"sizes": QUICK_SIZES, "n_least": 2},
    layouts=(
        Layout(
            ("model", "verbs"),
            forms=dict.fromkeys(CONDITIONS, ".2f") | {BOTH_SIGNS: ".2f", ONE_SIGN: ".2f"},
        ),
    ),
    published=published(
        {
            ("GPT-2", BEFORE): "48.82 48.19 50.86",
            ("BERT", BEFORE): "13.44 14.24 14.87",
            ("RoBERTa", BEFORE): "5.89 6.31 6.86",
            ("GPT-2", AFTER): "9.32 9.53 9.49",
            ("BERT", AFTER): "10.31 10.50 10.32",
            ("RoBERTa", AFTER): "4.78 5.00 4.89",
        },
        names=("model", "verbs"),
        columns={"measure": tuple(CONDITIONS)},
    )
    + published(
        {
            "GPT-2": "2.26E-05 0.17",
            "BERT": "2.24E-05 0.32",
            "RoBERTa": "1.22E-06 0.73",
        },
        columns={"verbs": (BEFORE, AFTER)},
        convert=math.log10,
        measure=ONE_SIGN,
    ),
    remarks=(
        "SemCor does not mark tense: here it is the form of the word (base, third person, -ing, or "
        "past tense and participle).",
    ),
)
def tense(settings: Settings, model: str) -> Findings:
    """The mean Euclidean distance between two occurrences of the same verb in SemCor, last layer
    (mean of the word's pieces): with the same tense and meaning, the same tense and another
    meaning, another tense and the same meaning. Over verbs with at least two senses that occur
    ten times and pairs of all three kinds; mean of verbs. Dominant directions are removed from
    clusters of these verbs' vectors; log10 I(W) is that of the same vectors. At most 25
    occurrences of a sense, drawn at random, are used. Mean over clusterings with different seeds.
    """
    verbs = _verbs(settings)
    rows = settings.encoder(model, cache=None).tokens([verb.span for verb in verbs]).means()
    sizes = sizes_for(settings, model)
    found: list[Record] = []
    for name, setting in ((BEFORE, BASELINE), (AFTER, CLUSTER)):
        values: dict[str, list[float]] = collections.defaultdict(list)
        for seed in seeds_of(settings, setting):
            space = repaired(rows, setting, sizes, seed)
            for measure, value in (verb_distances(space, verbs) | isotropies(space)).items():
                values[measure].append(value)
        found += [
            over_seeds(one, n=len(rows), measure=measure, verbs=name)
            for measure, one in values.items()
        ]
    n_verbs = len({verb.lemma for verb in verbs})
    note = f"{len(verbs):,} occurrences of {n_verbs:,} verbs."
    return Findings(found, notes=[sizes_note(settings, model), note])


def _verbs(settings: Settings) -> list[Occurrence]:
    """Occurrences of verbs that have two senses with at least n_least occurrences."""
    found: dict[str, dict[str, list[Occurrence]]] = {}
    paths = sorted(settings.data_folder("semcor").glob("*.jsonl*"))
    for line in (line for path in paths for line in _lines(path)):
        row = json.loads(line)
        words = [word.replace("_", " ") for word in row["tokens"]]
        starts = np.cumsum([0] + [len(word) + 1 for word in words]).tolist()
        text = " ".join(words)
        for i, lemma, sense, _ in row["senses"]:
            if row["pos"][i].startswith("VB") and "_" not in lemma:
                span = Span(text, starts[i], starts[i] + len(words[i]))
                one = Occurrence(lemma, sense, verb_form(words[i].lower(), lemma), span)
                found.setdefault(lemma, {}).setdefault(sense, []).append(one)
    options = settings.options
    draw = random.Random(0)
    kept: list[Occurrence] = []
    for senses in found.values():
        frequent = [sense for sense in senses.values() if len(sense) >= options["n_least"]]
        if len(frequent) > 1:
            for sense in frequent:
                kept += draw.sample(sense, min(len(sense), options["n_most"]))
    return kept


THIRD = {"is", "'s", "am", "'m", "are", "'re", "has"}


def verb_form(word: str, lemma: str) -> str:
    """The form of a verb: base, third person (all of the present for "be"), -ing or past.

    Examples
    --------
    >>> [verb_form(word, "carry") for word in ("carry", "carries", "carrying", "carried")]
    ['base', 'third', 'ing', 'past']
    >>> verb_form("sang", "sing"), verb_form("sing", "sing")
    ('past', 'base')
    """
    if word in (lemma, "'ve"):
        return "base"
    if word in THIRD or word in (f"{lemma}s", f"{lemma}es", f"{lemma[:-1]}ies"):
        return "third"
    return "ing" if word.endswith("ing") else "past"


def verb_distances(rows: Any, verbs: Sequence[Occurrence]) -> dict[str, float]:
    """Mean distance of pairs in each condition: of each verb that has all, then of these verbs."""
    places: dict[str, list[int]] = {}
    for i, verb in enumerate(verbs):
        places.setdefault(verb.lemma, []).append(i)
    found = []
    for numbers in places.values():
        distances = euclidean_distances(np.asarray(rows[numbers], dtype=np.float64))
        forms, senses = (
            np.array([getattr(verbs[i], key) for i in numbers]) for key in ("form", "sense")
        )
        upper = np.triu(np.ones_like(distances, dtype=bool), 1)
        same_form, same_sense = forms[:, None] == forms, senses[:, None] == senses
        pairs = [
            upper & (same_form == form) & (same_sense == sense)
            for form, sense in CONDITIONS.values()
        ]
        if all(one.any() for one in pairs):
            found.append([distances[one].mean() for one in pairs])
    means = np.mean(found, axis=0) if found else [math.nan] * len(CONDITIONS)
    return dict(zip(CONDITIONS, map(float, means), strict=True))


FIRST, TEN = "first component", "strongest of ten components"


@experiment(
    PAPER,
    "frequency",
    shows="figure 5",
    title="Word frequency in the space of tokens",
    claim="Words of similar frequency lie together in pre-trained spaces; removing the dominant "
    "directions of clusters takes this away.",
    data=("stsb", "wikitext2"),
    needed=2,
    models=(DB, SM),
    minutes=3,
    options={"sizes": SIZES, "n_points": 2000},
    quick={"sizes": QUICK_SIZES},
    layouts=(Layout(("model", "setting"), forms={FIRST: ".2f", TEN: ".2f"}),),
)
def frequency(settings: Settings, model: str) -> Findings:
    """The absolute Spearman correlation of a token's word frequency with its coordinate along the
    first principal component of all tokens of STS-B dev, last layer, in three settings; and the
    largest one among the first ten components. The figures show a sample of tokens, coloured by
    the frequency of their word in Wikipedia text (wikitext-2, log10 of occurrences per million).
    """
    texts = settings.task("sts", "stsb", "dev").texts
    rows, tokens = read_tokens(settings, model, texts)
    logs = log_frequencies(settings, tokens)
    found = Findings(notes=[sizes_note(settings, model)])
    for setting in SETTINGS:
        space = repaired(rows, setting, sizes_for(settings, model))
        values, found.figures[setting] = by_frequency(settings, space, tokens, logs)
        found.records.extend(
            record(value, n=len(rows), setting=setting, measure=name)
            for name, value in values.items()
        )
    return found


def by_frequency(
    settings: Settings, rows: Float32Array, tokens: Sequence[Token], logs: Floats
) -> tuple[dict[str, float], Any]:
    """How strongly principal components follow the frequency of words, and a view of the tokens."""
    positions, _ = components(rows, 10)
    strengths = [abs(float(spearmanr(one, logs).statistic)) for one in positions.T]
    shown = drawn(len(rows), settings.options["n_points"])
    words = [tokens[i].word for i in shown]
    figure = figures.shaded(positions[shown, :2], logs[shown], PER_MILLION, words)
    return {FIRST: strengths[0], TEN: max(strengths)}, figure


PER_MILLION = "log10 frequency\nper million words"


def log_frequencies(settings: Settings, tokens: Sequence[Token]) -> Floats:
    """log10 of how often each token's word is in a million words of Wikipedia text."""
    known = word_counts(settings)
    per_million = 1e6 / (known.total() + len(known))
    found: Floats = np.log10([(known[token.word] + 1) * per_million for token in tokens])
    return found


def word_counts(settings: Settings) -> collections.Counter[str]:
    """How often each word and each punctuation mark is in the training text of wikitext-2."""
    counts: collections.Counter[str] = collections.Counter()
    for line in _lines(settings.file("wikitext2", "train")):
        counts.update(WORD.findall(line.lower()))
    return counts


SHARES = {
    "with punctuation": "any",
    "mostly punctuation": "punctuation",
    "mostly stop words": "stop words",
    "mostly either": "either",
}
TOKENS = {"punctuation": "tokens: punctuation", "stop words": "tokens: stop words"}


@experiment(
    PAPER,
    "composition",
    shows="sections 1, 5.1",
    title="What clusters are made of",
    claim="Most clusters contain punctuation; others are made of stop words.",
    data=("stsb",),
    models=(DB, SM),
    minutes=2,
    seeds=5,
    options={"sizes": SIZES},
    quick={"sizes": QUICK_SIZES},
    layouts=(
        Layout(("model",), forms=dict.fromkeys((*SHARES, *TOKENS.values()), ".1%")),
    ),
)  # fmt: skip
def composition(settings: Settings, model: str) -> Findings:
    """The tokens of STS-B dev, last layer, in clusters: the share of clusters with any punctuation,
    and of those with more than half of their tokens punctuation, stop words (scikit-learn's list),
    or either; and for comparison the shares of all tokens. The figure shows each cluster of the
    first clustering. Mean over clusterings with different seeds.
    """
    texts = settings.task("sts", "stsb", "dev").texts
    rows, tokens = read_tokens(settings, model, texts)
    kinds = {
        "punctuation": np.array([is_punctuation(token.piece) for token in tokens]),
        "stop words": np.array([token.word in ENGLISH_STOP_WORDS for token in tokens]),
    }
    n_clusters, _, _ = sizes_for(settings, model)
    clusterings = [_shares(rows, kinds, n_clusters, seed) for seed in range(settings.seeds)]
    found = []
    for name, kind in SHARES.items():
        values = [
            float(np.mean(one["punctuation"] > 0 if kind == "any" else one[kind] > 0.5))
            for one in clusterings
        ]
        found.append(over_seeds(values, n=n_clusters, measure=name))
    found += [record(kinds[k].mean(), n=len(rows), measure=name) for k, name in TOKENS.items()]
    first = clusterings[0]
    order = np.argsort(-first["either"], kind="stable")
    shown = {
        kind: {str(rank): float(first[kind][i]) for rank, i in enumerate(order, 1)}
        for kind in kinds
    }
    figure = figures.bars(shown, "share of the cluster's tokens")
    figure.update_xaxes(title_text="cluster, ordered by its share of both")
    figure.update_yaxes(tickformat=".0%", range=[-0.03, 1.03])
    note = f"{Path(model).name}: {n_clusters} clusters."
    return Findings(found, {"composition": figure}, [note])


def _shares(
    rows: Float32Array, kinds: dict[str, NDArray[np.bool_]], n_clusters: int, seed: int
) -> dict[str, Floats]:
    """The share of each kind of tokens in every cluster, and of either kind."""
    centers = ClusterRemoval(n_clusters, 0, random_state=seed).fit(rows).cluster_centers_
    labels = pairwise_distances_argmin(rows, centers.astype(rows.dtype))
    sizes = np.bincount(labels, minlength=len(centers))
    either = np.any(list(kinds.values()), axis=0)
    return {
        kind: np.bincount(labels, weights=member, minlength=len(centers)) / np.maximum(sizes, 1)
        for kind, member in (kinds | {"either": either}).items()
    }
