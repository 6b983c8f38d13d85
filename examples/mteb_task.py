"""A repaired model in mteb, beside the model itself, on a task that is kept in this file.

    pip install "isotropy[mteb]"
    python examples/mteb_task.py [MODEL]

MODEL is a name on the hub or a folder [sentence-transformers/all-MiniLM-L6-v2].
"""

import sys
import tempfile

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from sentence_transformers import SentenceTransformer

import isotropy

# What the repair is fitted on must not be in the task.
FITTED_ON = [
    "The bridge was closed for repairs.",
    "She plays the violin every evening.",
    "Rain is expected in the north.",
    "The shop sells fresh bread.",
    "A boat crossed the wide lake.",
    "He forgot his keys at work.",
    "The film won three prizes.",
    "Snow covered the old town.",
]
PAIRS = [
    ("A man plays a guitar.", "A man is playing music.", 4.2),
    ("A dog runs in a field.", "A dog is running outside.", 4.4),
    ("A woman cuts an onion.", "A woman slices a vegetable.", 3.8),
    ("A child reads a book.", "The stock market fell today.", 0.0),
    ("Two cats sleep on a sofa.", "A plane lands at night.", 0.2),
    ("A train leaves the station.", "The train is at the station.", 2.6),
    ("A chef cooks rice.", "Somebody prepares food.", 3.1),
    ("Children play football.", "Adults watch a football match.", 1.8),
]


class SmallSTS(AbsTaskSTS):
    metadata = TaskMetadata(
        name="SmallSTS",
        type="STS",
        description="Eight pairs of sentences.",
        reference=None,
        dataset={"path": "local", "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
    )

    def load_data(self, num_proc=None, **kwargs):
        first, second, scores = zip(*PAIRS, strict=True)
        columns = {"sentence1": first, "sentence2": second, "score": scores}
        self.dataset = DatasetDict(test=Dataset.from_dict(columns))
        self.data_loaded = True


def main(name):
    model = SentenceTransformer(name, device="cpu")
    repair = isotropy.Center().fit(model.encode(FITTED_ON))
    with tempfile.TemporaryDirectory() as folder:
        cache = mteb.ResultCache(folder)  # shared: the repair's checksum keeps the scores apart
        for encoder in (model, isotropy.export.mteb(model, repair)):
            done = mteb.evaluate(encoder, SmallSTS(), cache=cache, show_progress_bar=False)
            meta = getattr(encoder, "mteb_model_meta", None)
            title = meta.experiment_name if meta else "the model itself"
            print(f"{done.task_results[0].get_score():.3f}  {title}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sentence-transformers/all-MiniLM-L6-v2")
