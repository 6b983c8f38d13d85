"""Retrieval: are the documents that answer a query nearest to it?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.models import Text, distinct
from isotropy.sources import listed
from isotropy.tasks import collections, reading
from isotropy.tasks.base import Task
from isotropy.tasks.collections import stem
from isotropy.tasks.outcomes import Integers, Mean, labels
from isotropy.tasks.reading import Table, column_choices
from isotropy.tasks.scorers import Cosine, Documents, Scorer

CUT = 10
DEEP = 100
QUERIES_AT_ONCE = 1024
SAMPLED = 5000  # texts that a scorer compares documents with
COSINE = Cosine()
IDS = column_choices("_id; id; docid; doc_id; pid; qid; query_id")
QUERY_TEXTS = column_choices("text; query; question; title")
DOCUMENT_TEXTS = column_choices("text; contents; document; passage; body; abstract")
JUDGED = column_choices(
    "query-id, corpus-id; query-id, doc-id; qid, docid; qid, pid; query-id, document-id"
)
GAINS = column_choices("score; relevance; rel; label; rating")


@public
class Retrieval(Task):
    """nDCG@10 of all documents ranked by their cosine with a query, or by another `Scorer`.

    The outcome's `metrics` hold recall@10, recall@100 and mrr@10. The search is exact, and equal
    scores keep the order of the documents.

    Parameters
    ----------
    queries : sequence of str
    documents : sequence of str
    judgements : iterable of (query, document, relevance)
        Positions of a query and a document in their lists, and the relevance, which is positive
        for relevant documents. Pairs that are not judged are not relevant.
    part, name
        See `Task`; the items are the queries.

    Notes
    -----
    DCG sums relevance/log2(1 + rank), as trec_eval and BEIR do. Queries without a relevant document
    are left out, and counted in `n_unlabelled`.

    Examples
    --------
    >>> task = Retrieval(["pets?", "cars?"], ["a cat", "a van"], [(0, 0, 1), (1, 1, 1)])
    >>> task.texts
    ['pets?', 'cars?', 'a cat', 'a van']
    >>> task.score([[1, 0], [0, 1], [1, 0.1], [1, 0.2]]).value
    1.0
    """

    kind = "retrieval"
    metric = "ndcg@10"
    widths = (1,)
    per_item = ("relevance", "query_rows")

    def __init__(
        self,
        queries: Sequence[Text],
        documents: Sequence[Text],
        judgements: Iterable[tuple[int, int, float]],
        part: Sequence[str] | None = None,
        name: str = "",
    ) -> None:
        relevance = _relevance(judgements, len(queries), len(documents), name or self.kind)
        kept = np.flatnonzero(np.diff(relevance.indptr)).tolist()
        for number, document in enumerate(documents):
            self._expect_text([document], f"document {number}")
        self.corpus = list(documents)
        self.corpus_rows: Integers = np.arange(len(documents))
        self.n_entries = {"documents": len(documents), "queries": len(queries)}  # of its files
        self.n_blank = 0  # documents of its files that have no text
        parts = None if part is None else labels(part, "part", len(queries))[kept].tolist()
        super().__init__([(queries[i],) for i in kept], parts, name)
        self.relevance = relevance[kept]
        self.query_rows: Integers = np.array(kept)
        self.n_unlabelled = len(queries) - len(kept)

    @classmethod
    def read(cls, source: str | os.PathLike[str], *, name: str | None = None) -> Self:
        """Read a folder, or a dataset on the hub, of a corpus, queries and qrels.

        Corpus and queries have the columns _id and text, and the corpus may have a title. The
        qrels are a file, or a folder with one file per part, with the columns query-id, corpus-id
        and score, or TREC's four columns without a header. A title is put before its text unless
        the text begins with it. Documents without text are left out. The folders of CISI, CACM,
        Cranfield and Medline, in SMART's format, are read as they come.
        """
        corpus, queries, qrels = _tables(source)
        entries = list(_documents(corpus))
        documents = {key: text for key, text in entries if text}
        numbers = {key: number for number, key in enumerate(documents)}
        texts = queries.texts(*queries.choose(*QUERY_TEXTS))
        asked = dict(zip(_ids(queries), (text for (text,) in texts), strict=True))
        columns = (qrels.columns[c] for c in qrels.choose(*JUDGED))
        scores = qrels.numbers(*qrels.choose(*GAINS))
        items: dict[tuple[str, str], int] = {}
        judgements = []
        for part, query, document, score in zip(qrels.parts, *columns, scores, strict=True):
            if str(query) in asked and str(document) in numbers:
                item = items.setdefault((part, str(query)), len(items))
                judgements.append((item, numbers[str(document)], score))
        task = cls(
            [asked[query] for _, query in items],
            list(documents.values()),
            judgements,
            [part for part, _ in items],
            name or corpus.name,
        )
        task.n_unlabelled = len(asked) - len({query for _, query in items}) + task.n_unlabelled
        task.n_entries = {"documents": len(entries), "queries": len(_ids(queries))}
        task.n_blank = sum(not text for _, text in entries)
        places = {key: place for place, key in enumerate(_ids(corpus))}
        task.corpus_rows = np.array([places[key] for key in documents])
        places = {key: place for place, key in enumerate(_ids(queries))}
        task.query_rows = np.array([places[query] for _, query in items])[task.query_rows]
        return task

    def arranged(self, documents: NDArray[Any], queries: NDArray[Any]) -> NDArray[Any]:
        """One row per text, from vectors in the order of the files of corpus and queries.

        Parameters
        ----------
        documents, queries : arrays of shape (n_samples, n_features)
            With a row for each document and each query of the files that the task was read from,
            including those that are left out; or of the lists that it was made of. Documents
            without text may be missing, as `isotropy embed` leaves them out.
        """
        n_documents, places = self.n_entries["documents"], self.corpus_rows
        if len(documents) == len(places) == n_documents - self.n_blank:
            n_documents, places = len(places), np.arange(len(places))
        wanted = {"documents": n_documents, "queries": self.n_entries["queries"]}
        for rows, name in ((documents, "documents"), (queries, "queries")):
            if rows.shape != (wanted[name], documents.shape[1]):
                fewer = ""
                if name == "documents" and self.n_blank:
                    fewer = f", or {n_documents - self.n_blank:,} without blank texts"
                raise InputError(
                    f"{name} must have a row of {documents.shape[1]} dimensions for each of the "
                    f"{wanted[name]:,} of {self.name!r}{fewer}, got shape {rows.shape}."
                )
        both = np.intersect1d(self.members[:, 0], self.documents)
        if len(both):
            raise InputError(
                f"{self.name!r} must have no query that is a document too, got {len(both):,}: it "
                "is not clear which row is its vector. Remove these queries."
            )
        found = np.empty((len(self.texts), documents.shape[1]), np.float32)
        found[self.members[:, 0]] = queries[self.query_rows]
        found[self.documents] = documents[places]
        return found

    def _arrange(self, items: Sequence[tuple[Text, ...]]) -> None:
        super()._arrange(items)
        numbers = {text: number for number, text in enumerate(self.texts)}
        self.documents: Integers = np.array([numbers[text] for text in self.corpus])

    @property
    def towers(self) -> dict[Text, str]:
        """The tower of each text, "query" or "document": the groups of a model that has two."""
        found: dict[Text, str] = dict.fromkeys(self.corpus, "document")
        asked = [self.texts[i] for i in self.members[:, 0]]
        n_both = sum(text in found for text in asked)
        if n_both:
            raise InputError(
                f"{self.name!r} must have no query that is a document too, got {n_both:,}: a text "
                "has one group. Remove these queries."
            )
        return found | dict.fromkeys(asked, "query")

    def score(
        self, vectors: Any, items: Any = None, train: Any = None, scorer: Scorer = COSINE
    ) -> Mean:
        """The score of these vectors on the items.

        Parameters
        ----------
        vectors, items
            See `Task.score`.
        train : array of item numbers, optional
            Items whose queries the scorer may compare documents with; those that are scored are
            left out. If none are left, documents are compared with each other.
        scorer : Scorer
            How documents are scored for a query: by their cosine, unless given.
        """
        return self.outcome(*self._checked(vectors, items, train), scorer)

    def outcome(
        self, X: NDArray[Any], items: Integers, train: Integers, scorer: Scorer = COSINE
    ) -> Mean:
        sample, _ = self.compared_with(items, train)
        index = scorer.index(Documents(self.documents, sample, partial(self.rows_of, X)))
        blocks = np.array_split(items, -(-len(items) // QUERIES_AT_ONCE))
        queries = (self.rows_of(X, self.members[block, 0]) for block in blocks)
        ranked = np.concatenate([index.ranked(rows, DEEP) for rows in queries])
        relevance = self.relevance[items]
        gains = gains_at(relevance, ranked)
        hits, n_relevant = gains > 0, np.diff(relevance.indptr)
        first = np.argmax(hits, axis=1)
        metrics = {f"recall@{k}": hits[:, :k].sum(axis=1) / n_relevant for k in (CUT, DEEP)}
        metrics[f"mrr@{CUT}"] = hits[:, :CUT].any(axis=1) / (1.0 + first)
        top = gains[:, :CUT]
        ndcg = top @ (1 / np.log2(2 + np.arange(top.shape[1]))) / ideal(relevance)
        return Mean(ndcg, {name: float(values.mean()) for name, values in metrics.items()})

    def compared_with(self, items: Integers, train: Integers) -> tuple[Integers, str]:
        """(positions in `texts` of what a scorer compares documents with, what that is in words).

        The queries of `train` that are not scored, or else the documents; at most 5,000, drawn with
        seed 0.
        """
        queries, what = np.unique(self.members[train, 0]), "training queries"
        scored = self.identities[self.members[items, 0]]
        texts = queries[~np.isin(self.identities[queries], scored)]
        if not len(texts):
            texts, what = np.unique(self.documents), "documents"
        if len(texts) <= SAMPLED:
            return texts, f"{len(texts):,} {what}"
        drawn = np.random.default_rng(0).choice(texts, SAMPLED, replace=False)
        return np.sort(drawn), f"{SAMPLED:,} of {len(texts):,} {what}"


def _relevance(
    judgements: Iterable[tuple[int, int, float]], n_queries: int, n_documents: int, name: str
) -> Any:
    found = {(query, document): gain for query, document, gain in judgements if gain > 0}
    if not found:
        raise InputError(
            f"{name!r} must have a relevant document for some query, got none. "
            "Check that the judgements use the same numbers as queries and documents."
        )
    rows, columns = np.array(list(found)).T
    n_seen = rows.max() + 1, columns.max() + 1
    if min(rows.min(), columns.min()) < 0 or n_seen[0] > n_queries or n_seen[1] > n_documents:
        raise InputError(
            f"judgements must refer to the {n_queries} queries and {n_documents} "
            f"documents, got the numbers {rows.max()} and {columns.max()}."
        )
    gains = np.array(list(found.values()), dtype=np.float64)
    return csr_array((gains, (rows, columns)), shape=(n_queries, n_documents))


def gains_at(relevance: Any, ranked: Integers) -> Floats:
    """Relevance of the ranked documents of each query."""
    n_queries, n_documents = relevance.shape
    relevance.sort_indices()
    row = np.repeat(np.arange(n_queries), np.diff(relevance.indptr))
    keys = row * n_documents + relevance.indices
    wanted = np.arange(n_queries)[:, None] * n_documents + ranked
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, relevance.data[place], 0.0)


def ideal(relevance: Any) -> Floats:
    """The highest possible DCG@10 of each query: its most relevant documents first."""
    counts = np.diff(relevance.indptr)
    row = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((-relevance.data, row))
    rank = np.arange(len(row)) - np.repeat(relevance.indptr[:-1], counts)
    gains = np.where(rank < CUT, relevance.data[order] / np.log2(2 + rank), 0.0)
    return np.add.reduceat(gains, relevance.indptr[:-1])


def _tables(source: str | os.PathLike[str]) -> tuple[Table, Table, Table]:
    """Corpus, queries and judgements."""
    path = Path(os.path.expanduser(source))
    if not os.path.isdir(path):
        name = os.fspath(source)
        if os.path.exists(path) or path.is_absolute() or name.startswith((".", "~")):
            raise InputError(f"data must be a folder, got {name!r}.")
        named = reading.hub_name(name)
        corpus, queries, qrels = (
            reading.concatenated(reading.hub(f"{name}:{part}"), named)
            for part in ("corpus", "queries", "default")
        )
        return corpus, queries, qrels
    name = path.resolve().name
    smart = collections.smart_files(path)
    if smart:
        return _smart(*smart, name)
    files = {stem(file.name): file for file in reading.tabular(path)}
    judged = sorted(file for file in path.iterdir() if collections.is_judgements(file))
    missing = [part for part in ("corpus", "queries") if part not in files]
    missing += [] if judged else ["qrels"]
    if missing:
        raise InputError(
            f"{str(path)!r} must hold corpus, queries and qrels, but there is no "
            f"{' and no '.join(missing)}."
        )
    if len(judged) > 1:
        raise InputError(
            f"{str(path)!r} must hold one file or folder of qrels, got "
            f"{listed([file.name for file in judged], 5)}. Move the others away."
        )
    corpus, queries = (reading.read_file(files[part]) for part in ("corpus", "queries"))
    return replace(corpus, name=name), queries, _qrels(judged[0])


def _qrels(path: Path) -> Table:
    """The judgements in a file, or in a folder with one file per part."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
        if not files:
            raise InputError(f"{str(path)!r} must hold qrels, got nothing.")
        found = []
        for file in reading.parts_among(files):
            table = _qrels(file)
            parts = [reading.part_of(stem(file.name))] * len(table.lines)
            found.append(replace(table, parts=parts))
        return reading.concatenated(found, path.name)
    bare = None if path.suffix == ".parquet" else collections.read_judgements(path)
    return reading.read_file(path) if bare is None else _judged_table(*bare, path.name)


def _judged_table(judgements: collections.Judgements, lines: list[int], name: str) -> Table:
    queries, documents, gains = (list(values) for values in zip(*judgements, strict=True))
    columns = {"query-id": queries, "corpus-id": documents, "score": gains}
    return Table.of_file(name, columns, lines, name)


def _smart(documents: Path, queries: Path, judged: Path, name: str) -> tuple[Table, Table, Table]:
    """The tables of a collection in SMART's format."""
    found = []
    for path in (documents, queries):
        entries = collections.read_smart(path)
        keys, titles, texts = (list(values) for values in zip(*entries, strict=True))
        if path == queries:
            titles, texts = [""] * len(keys), [w or t for t, w in zip(titles, texts, strict=True)]
        columns = {"_id": keys, "title": titles, "text": texts}
        found.append(Table.of_file(name, columns, [1] * len(keys), path.name))
    bare = collections.read_judgements(judged)
    if bare is None:
        raise InputError(
            f"{str(judged)!r} must hold lines with the numbers of a query and a document, got none."
        )
    corpus, asked = found
    keyed = collections.numbered(bare[0], asked.columns["_id"], corpus.columns["_id"])
    return corpus, asked, _judged_table(keyed, bare[1], judged.name)


def _ids(table: Table) -> list[str]:
    return [str(key) for key in table.columns[table.choose(*IDS)[0]]]


def _documents(corpus: Table) -> Iterable[tuple[str, str]]:
    """(id, title and text) of every document."""
    (column,) = corpus.choose(*DOCUMENT_TEXTS)
    texts = corpus.columns[column]
    titles = corpus.columns.get("title", [None] * len(texts))
    for key, title, text in zip(_ids(corpus), titles, texts, strict=True):
        title, text = str(title or "").strip(), str(text or "").strip()
        yield key, text if text.startswith(title) else f"{title} {text}".strip()


@public
def adjacent(texts: Sequence[str], name: str = "adjacent sentences (pseudo-task)") -> Retrieval:
    """A search in which each text must find the one that follows it in the list.

    Texts are taken in pairs, so that no text is in two items. The result says something about a
    real search only if that search looks for text from the same place.

    Examples
    --------
    >>> adjacent(["How are you?", "I am fine.", "Rain fell.", "The river rose."]).n_items
    2
    """
    if len(texts) < 4:
        raise InputError(f"texts must have at least 4 entries, got {len(texts)}.")
    return titled(texts[0 : len(texts) - 1 : 2], texts[1::2], name)


@public
def titled(
    titles: Sequence[str], bodies: Sequence[str], name: str = "title to body (pseudo-task)"
) -> Retrieval:
    """A search in which each title must find its body among all bodies.

    Repeated titles, and titles that are also a body, are left out.
    """
    if len(titles) != len(bodies):
        raise InputError(f"titles must be as many as bodies, got {len(titles)} and {len(bodies)}.")
    documents, numbers = distinct(bodies)
    found: dict[str, int] = {}
    for title, body in zip(titles, bodies, strict=True):
        if title not in numbers:
            found.setdefault(title, numbers[body])
    if len(found) < 2:
        raise InputError(
            f"titles must have at least 2 distinct entries that are no bodies, got {len(found)}."
        )
    judged = [(place, number, 1.0) for place, number in enumerate(found.values())]
    return Retrieval(list(found), documents, judged, name=name)
