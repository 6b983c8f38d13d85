"""Repaired encoders in mteb: their scores, their cache, and what they are called."""

import csv

import numpy as np
import pytest

import isotropy
from isotropy import export, repairs
from isotropy.errors import InputError, InputTypeError, IsotropyWarning
from isotropy.tasks import STS, Retrieval

from .. import static_models

mteb = pytest.importorskip("mteb")
sentence_transformers = pytest.importorskip("sentence_transformers")

from datasets import Dataset, DatasetDict  # noqa: E402
from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.models import EncoderProtocol  # noqa: E402
from mteb.models.models_protocols import SearchProtocol  # noqa: E402

SAME = 2e-5  # mteb rounds what it stores to six digits, and scores in float32
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def metadata(name, kind, main_score):
    return TaskMetadata(
        name=name,
        type=kind,
        main_score=main_score,
        description="A local task.",
        reference=None,
        dataset={"path": "local", "revision": "1"},
        category="t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        modalities=["text"],
        bibtex_citation=None,
    )


def local_sts(pairs, scores):
    class LocalSTS(AbsTaskSTS):
        metadata = metadata("LocalSTS", "STS", "cosine_spearman")

        def load_data(self, num_proc=None, **kwargs):
            first, second = zip(*pairs, strict=True)
            columns = {"sentence1": first, "sentence2": second, "score": scores}
            self.dataset = DatasetDict(test=Dataset.from_dict(columns))
            self.data_loaded = True

    return LocalSTS()


def local_retrieval(queries, documents, judgements):
    """A task of mteb from what isotropy's own takes."""

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = metadata("LocalRetrieval", "Retrieval", "ndcg_at_10")

        def load_data(self, num_proc=None, **kwargs):
            relevant = {}
            for query, document, gain in judgements:
                relevant.setdefault(f"q{query}", {})[f"d{document}"] = gain
            split = RetrievalSplitData(
                queries=Dataset.from_list(
                    [{"id": f"q{i}", "text": text} for i, text in enumerate(queries)]
                ),
                corpus=Dataset.from_list(
                    [{"id": f"d{i}", "text": t, "title": ""} for i, t in enumerate(documents)]
                ),
                relevant_docs=relevant,
                top_ranked=None,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalRetrieval()


def score(model, task, cache):
    done = mteb.evaluate(model, task, cache=cache, show_progress_bar=False, co2_tracker=False)
    return done.task_results[0].get_score()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = static_models.static_embedding(tmp_path_factory.mktemp("mteb") / "static")
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


WORDS = ["cat", "dog", "moon", "car", "tree", "house", "river", "book", "night", "day", "food"]
WORDS += ["water", "stone", "bird", "road", "song", "king", "green", "seven", "music", "field"]


@pytest.fixture(scope="module")
def texts():
    """Texts of five words; no two have the same words, which would be a tie."""
    random = np.random.default_rng(0)
    chosen = {frozenset(random.choice(WORDS, 5, replace=False).tolist()) for _ in range(350)}
    found = sorted(" ".join(sorted(words)) for words in chosen)
    return [found[i] for i in random.permutation(len(found))]


@pytest.fixture(scope="module")
def repair(model, texts):
    return repairs.Whiten().fit(model.encode(texts[:200], show_progress_bar=False))


def check_scores(model, repair, ours, theirs, cache):
    """Scores with and without the repair are ours, and stay apart in the cache."""
    rows = model.encode(ours.texts, show_progress_bar=False)
    plain, repaired = score(model, theirs, cache), score(export.mteb(model, repair), theirs, cache)
    assert plain == pytest.approx(ours.score(rows).value, abs=SAME)
    assert repaired == pytest.approx(ours.score(repair.transform(rows)).value, abs=SAME)
    assert abs(plain - repaired) > 100 * SAME
    assert score(model, theirs, cache) == pytest.approx(plain, abs=SAME)
    assert score(export.mteb(model, repair), theirs, cache) == pytest.approx(repaired, abs=SAME)
    other = repairs.Standardize().fit(rows)
    assert score(export.mteb(model, other), theirs, cache) not in (plain, repaired)


def test_sts_with_and_without_the_repair_share_a_cache(model, repair, texts, tmp_path):
    random = np.random.default_rng(1)
    pairs = [tuple(random.choice(texts[200:], 2, replace=False).tolist()) for _ in range(80)]
    scores = [len(set(a.split()) & set(b.split())) + random.random() for a, b in pairs]
    cache = mteb.ResultCache(tmp_path)
    check_scores(model, repair, STS(pairs, scores), local_sts(pairs, scores), cache)


def test_retrieval_with_and_without_the_repair_share_a_cache(model, repair, texts, tmp_path):
    documents = list(dict.fromkeys(texts[200:]))
    queries = list(dict.fromkeys(" ".join(text.split()[:3]) for text in documents[:40]))
    judgements = [
        (i, j, 1)
        for i, query in enumerate(queries)
        for j, document in enumerate(documents)
        if document.startswith(query)
    ]
    ours = Retrieval(queries, documents, judgements)
    theirs = local_retrieval(queries, documents, judgements)
    check_scores(model, repair, ours, theirs, mteb.ResultCache(tmp_path))


def test_metadata_is_kept_and_names_the_repair(model, repair):
    encoder = export.mteb(model, repair)
    before = mteb.models.SentenceTransformerEncoderWrapper(model).mteb_model_meta
    after = encoder.mteb_model_meta
    changed = {"experiment_kwargs"}
    assert before.model_dump(exclude=changed) == after.model_dump(exclude=changed)
    assert after.experiment_name.startswith("isotropy_whiten-")
    assert isinstance(encoder, EncoderProtocol)
    assert not isinstance(encoder, SearchProtocol)
    again = repairs.Whiten().fit(np.random.default_rng(0).standard_normal((50, 16)))
    assert export.mteb(model, again).mteb_model_meta.experiment_name != after.experiment_name
    twice = export.mteb(encoder, again).mteb_model_meta.experiment_kwargs["isotropy"]
    assert twice.startswith(after.experiment_kwargs["isotropy"] + "+whiten-")


def test_the_width_in_the_metadata_is_that_of_the_repaired_vectors(model, texts):
    repair = repairs.Whiten("pca", n_components=5).fit(model.encode(texts))
    assert export.mteb(model, repair).mteb_model_meta.embed_dim == 5


def test_what_cannot_be_evaluated_is_refused(model, repair, tmp_path):
    with pytest.raises(InputTypeError, match=r"export.mteb: model must be .* got str"):
        export.mteb("all-MiniLM-L6-v2", repair)
    with pytest.raises(InputTypeError, match="repair must be a fitted repair, got str"):
        export.mteb(model, "repair.safetensors")
    repair.save(tmp_path / "tokens.safetensors", level="token")
    with pytest.raises(InputError, match="got one for tokens"):
        export.mteb(model, isotropy.load(tmp_path / "tokens.safetensors"))
    narrow = export.mteb(model, repairs.Center().fit(np.eye(4)))
    task = local_sts([("a cat", "a dog"), ("a car", "a cat")], [1, 0])
    with pytest.raises(InputError, match=r"must encode to 4 dimensions.* got 16"):
        score(narrow, task, None)


def test_another_model_than_the_fitted_one_is_named(model, repair, tmp_path):
    origin = repairs.Origin(model="thenlper/gte-small")
    repair.save(tmp_path / "gte.safetensors", origin=origin)
    encoder = mteb.models.SentenceTransformerEncoderWrapper(model)
    named = encoder.mteb_model_meta.model_copy(update={"name": "someone/static"})
    encoder.mteb_model_meta = named
    with pytest.warns(IsotropyWarning, match=r"model 'someone/static', and .*gte-small"):
        export.mteb(encoder, isotropy.load(tmp_path / "gte.safetensors"))


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_stsb_scores_as_ours_does(models, data, tmp_path):
    folder = models / "all-MiniLM-L6-v2"
    if not folder.is_dir():
        pytest.skip("no model all-MiniLM-L6-v2")
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with open(data / "stsb" / "dev.tsv", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    repair = repairs.AllButTheTop(8).fit(model.encode([row["sentence1"] for row in rows[:400]]))
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows[400:700]]
    scores = [float(row["score"]) for row in rows[400:700]]
    cache = mteb.ResultCache(tmp_path)
    check_scores(model, repair, STS(pairs, scores), local_sts(pairs, scores), cache)
