"""Encode texts with exported models in a process where isotropy cannot be imported.

Run as `python alone.py jobs.json`. A job has a "folder", "texts" and "out"; with "vectors", what
the model's pooling gives is replaced by these; a "method" is used instead of `encode`.
"""

import json
import os
import sys

os.environ["TQDM_DISABLE"] = "1"


class Refusal:
    """Refuses to import isotropy."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "isotropy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(path):
    sys.meta_path.insert(0, Refusal())
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    with open(path, encoding="utf-8") as file:
        jobs = json.load(file)
    for job in jobs:
        model = SentenceTransformer(job["folder"], device="cpu", trust_remote_code=True)
        if "vectors" in job:
            features = {"sentence_embedding": torch.from_numpy(np.load(job["vectors"]))}
            with torch.inference_mode():
                for module in list(model)[2:]:
                    features = module(features)
            found = features["sentence_embedding"].numpy()
        else:
            method = getattr(model, job.get("method", "encode"))
            found = method(job["texts"], batch_size=64)
        np.save(job["out"], found)
    assert "isotropy" not in sys.modules


if __name__ == "__main__":
    main(sys.argv[1])
