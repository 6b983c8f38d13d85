"""Put a repair into a sentence-transformers model, and check that `encode` gives the same vectors.

    python examples/sentence_transformers_model.py MODEL TEXTS OUT

MODEL is a folder or a name on the hub, TEXTS a file with one text per line, OUT a new folder.
"""

import sys

import numpy as np
from sentence_transformers import SentenceTransformer

import isotropy


def main(model: str, texts: str, out: str) -> None:
    # Pooled vectors from before the model's own Normalize, so that servers can run the result.
    encoder = isotropy.Encoder(model, pool="mean", special_tokens=True)
    repair = isotropy.Whiten(power=0.5, normalize=True).fit(encoder.source(texts))
    isotropy.export.sentence_transformers(model, repair, out)

    with open(texts, encoding="utf-8") as file:
        some = [line.strip() for line in file if line.strip()][:100]
    ours = encoder.with_repair(repair, "sentence").encode(some)
    theirs = SentenceTransformer(out).encode(some)
    print(f"modules: {', '.join(type(module).__name__ for module in SentenceTransformer(out))}")
    print(f"largest difference: {np.abs(ours - theirs).max():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
