"""isotropy calibrate: what a high cosine is in a space."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from isotropy.cli import common
from isotropy.errors import InputError
from isotropy.repairs import FEWEST, ScoreCalibrator, check_target, load
from isotropy.tables import json_line


@common.command(
    "isotropy calibrate vectors.npy --rate 0.001",
    "isotropy calibrate vectors.npy --score 0.83 --repair repair.safetensors --json",
)
def calibrate(
    source: common.SourceArgument,
    *,
    rate: Annotated[
        float, Option(help="Share of unrelated pairs that may pass as matches.")
    ] = 0.01,
    score: Annotated[
        list[float] | None, Option(help="A cosine to judge; repeatable.", min=-1, max=1)
    ] = None,
    repair: common.RepairOption = None,
    save: Annotated[
        Path | None, Option(help="File for the calibrator, to be read by `ScoreCalibrator.load`.")
    ] = None,
    overwrite: common.OverwriteOption = False,
    n_pairs: Annotated[int, Option(help="Random pairs of rows to draw.", min=1)] = 1_000_000,
    seed: common.SeedOption = 0,
    as_json: common.JsonOption = False,
    options: common.SourceOptions,
) -> None:
    """Find which cosine counts as high: the threshold for a false-match rate.

    Cosines of unrelated rows depend on the space: in one 0.8 is a match, in another two random rows
    reach it. This draws random pairs, and gives the cosine that only --rate of them reach.
    """
    if not 0 < rate < 1:
        raise InputError(
            f"--rate must be a number in (0, 1), got {rate:g}. 0.01 allows one false "
            "match in a hundred unrelated pairs."
        )
    save = common.destination(save)
    inputs = {"SOURCE": source, "--repair": repair}
    check_target({"--save": save}, inputs, overwrite=overwrite)
    fitted = None if repair is None else load(repair)
    rows = options.open(source)
    with options.running():
        calibrator = ScoreCalibrator(n_pairs, seed).fit(rows, repair=fitted)
    n_pairs, n_rows = calibrator.n_pairs_, calibrator.n_samples_seen_
    if n_pairs <= FEWEST:
        raise InputError(
            f"there must be more than {FEWEST} pairs of different rows, got {n_pairs} "
            f"from {n_rows:,} rows. Give more rows or a larger --n-pairs."
        )
    if rate * n_pairs * (1 + 1e-12) < FEWEST:
        digit = 10.0 ** (math.floor(math.log10(FEWEST / n_pairs)) - 1)
        least = math.ceil(FEWEST / n_pairs / digit) * digit  # two digits, rounded up
        raise InputError(
            f"--rate must be at least {least:.2g} with {n_pairs:,} pairs of "
            f"{n_rows:,} rows, got {rate:g}. Raise it, or give more rows or a larger --n-pairs."
        )
    threshold = calibrator.threshold(rate)
    scores = [
        {"score": one, "p": calibrator.p_value(one), "percentile": calibrator.percentile(one)}
        for one in score or []
    ]
    common.say_left_out(rows.n_samples - n_rows)
    with common.beside(save):
        if as_json:
            found = {
                "threshold": threshold,
                "false_match_rate": rate,
                "mean": calibrator.mean_,
                "std": calibrator.std_,
                "n_pairs": n_pairs,
                "repair": calibrator.repair_,
                "scores": scores,
            }
            typer.echo(json_line(found))
        else:
            typer.echo(str(calibrator))
            typer.echo(f"threshold for a false-match rate of {rate:g}: {threshold:.4f}")
            for one in scores:
                typer.echo(
                    f"{one['score']:g}: above {one['percentile']:.2f} % of unrelated pairs, "
                    f"p = {one['p']:.2g}"
                )
    if save is not None:
        calibrator.save(save, overwrite=overwrite)
