"""Small tasks and models, and jobs and trials over them."""

from __future__ import annotations

import pytest

from isotropy.trial.settings import Job, settings_for

from .. import tiny_models
from . import trial_data


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """(folder of tasks, folder of models)."""
    folder = tmp_path_factory.mktemp("trial")
    tiny_models.bert(folder / "models" / "bert")
    tiny_models.t5(folder / "models" / "t5")
    return trial_data.tasks(folder / "data"), folder / "models"


@pytest.fixture
def job(places):
    """job(task, spec, seed=0, model="bert", **settings)."""
    data, models = places

    def make(task, spec, seed=0, model="bert", search=0.0, **settings):
        settings = settings_for(task, model, **{"epochs": 2, "batch_size": 8, **settings})
        return Job(task, str(models / model), spec, spec, seed, settings, str(data), "cpu", search)

    return make


@pytest.fixture
def trial(places, tmp_path):
    data, models = places

    def make(tasks=("rte",), methods=("none",), model="bert", **options):
        settings = {"epochs": 1, "batch_size": 8, "max_train": 24, **options.pop("settings", {})}
        options = {"n_seeds": 1, "device": "cpu", "out": tmp_path / "runs.jsonl"} | options
        from isotropy.trial.trial import Trial

        return Trial(
            tasks, [model], methods, data=data, folder=models, settings=settings, **options
        )

    return make
