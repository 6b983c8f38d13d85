"""One run of the trial: a model, a task, a method and a seed, from data to a record."""

from __future__ import annotations

import math
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from isotropy._version import __version__
from isotropy.errors import InputError, IsotropyWarning, reason
from isotropy.geometry import measure
from isotropy.losses.functional import isoscore, log_inverse
from isotropy.losses.layers import JointLoss, freeze
from isotropy.metrics.base import gather
from isotropy.metrics.spectrum import explained
from isotropy.models import extra
from isotropy.models.loading import quiet
from isotropy.trial import task_data
from isotropy.trial.methods import IsotropyLayerMethod, Prepared, TrainingMethod, method_of
from isotropy.trial.networks import (
    Items,
    LoadedModel,
    TrainingBatch,
    evaluating,
    load_model,
    on_device,
)
from isotropy.trial.settings import Job, TrainingSettings, read_once
from isotropy.trial.task_data import GENERATION, SIAMESE
from isotropy.writing import NewFolder, quoted, write_errors

_, transformers = extra()

Tensor = Any
GEOMETRY = {  # names in records: names of metrics
    "i1": "partition_isotropy",
    "log_i1": "log_partition_isotropy",
    "i2": "partition_dispersion",
    "isoscore": "isoscore",
    "isoscore_unbiased": "isoscore_unbiased",
}
N_EXPLAINED = 20  # components whose cumulative shares of the variance are recorded
MOST_ROWS = 1 << 14  # that geometry is measured on


class Diverged(Exception):
    """A loss that is not finite."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"loss not finite in epoch {epoch + 1}")


@dataclass
class History:
    """What happened in training."""

    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    best_epoch: int | None = None


def run(job: Job) -> dict[str, Any]:
    """The record of a run: scores, geometry before and after, times and memory.

    A loss that is not finite ends the run, with status "diverged" and no score. Any other outcome
    is recorded as it is, such as a model that predicts one class only.
    """
    prepared = prepare(job)
    found = prepared.record()
    if job.save is not None and found["status"] == "finished":
        save(prepared.model, job.save, job.overwrite)
    return found


def save(model: LoadedModel, path: str, overwrite: bool) -> None:
    """Write encoder and tokenizer to a folder that transformers opens, completely or not at all.

    An encoder-decoder is saved with its output layer, an encoder without its head and calibration.
    """
    folder = NewFolder(path, overwrite)
    try:
        with write_errors(path), quiet():
            folder.begin()
            model.network.body.save_pretrained(folder.part)
            model.tokenizer.save_pretrained(folder.part)
            folder.finish()
    except SafetensorError as error:  # such as a full disk
        raise InputError(
            f"{quoted(path)} could not be written: {reason(error)}. Save elsewhere."
        ) from error
    finally:
        folder.discard()


def prepare(job: Job) -> TrainingRun:
    """Load data and model, draw the items, and prepare the network for the method."""
    settings = job.settings
    data = read_once(job.task, job.data, settings.part)
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    method = method_of(job.spec)
    torch.manual_seed(job.seed)
    model = load_model(job.model, data, torch.device(job.device), settings.head)
    prepared = method.prepare(model.network, data.spec.kind)
    train = task_data.first(data.train, settings.max_train, 0)
    evaluated = task_data.first(data.evaluated, settings.max_eval, 0)
    kept = None
    if job.search:
        train, evaluated = task_data.split(train, job.search, 0)
    elif settings.validation:
        train, kept = task_data.split(train, settings.validation, job.seed)
    parts = [p if p is None else model.items(p, data, settings) for p in (train, evaluated, kept)]
    return TrainingRun(job, data, model, method, prepared, *parts)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A run that is ready to train."""

    job: Job
    data: task_data.TaskData
    model: LoadedModel
    method: TrainingMethod
    prepared: Prepared  # the method, for this network
    train: Items
    evaluated: Items
    validation: Items | None  # for early stopping

    @property
    def network(self) -> Any:
        return self.model.network

    @property
    def settings(self) -> TrainingSettings:
        return self.job.settings

    @property
    def device(self) -> Any:
        return self.model.device

    def record(self) -> dict[str, Any]:
        start = time.perf_counter()
        found = self.job.identity() | self.job.inputs()
        found |= {
            "status": "finished",
            "metric": self.data.spec.metrics[0],
            "score": math.nan,
            "n_train": len(self.train),
            "n_evaluated": len(self.evaluated),
            "divided": self.data.divided,
        }
        if not self.job.search:
            found["geometry"] = {"before": self._geometry()}
        self.start_head()
        history = History()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            self._fine_tune(history)
            found |= self._outcome(found)
        except Diverged as error:
            found |= {"status": "diverged", "why": str(error)}
        return found | {
            "options": self.prepared.options(),
            "losses": history.losses,
            "validation": history.validation,
            "best_epoch": history.best_epoch,
            "seconds_per_epoch": float(np.mean(history.seconds)) if history.seconds else math.nan,
            "seconds": time.perf_counter() - start,
            "peak_memory_mb": self._peak(),
            "device": self._device_name(),
            "versions": {
                "isotropy": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        }

    def start_head(self) -> None:
        """Prepare the head for centred rows, if the method gives it such."""
        if self.method.centres:
            with self._precision():
                self.network.expect(self.train, self.settings.batch_size)

    def _outcome(self, found: dict[str, Any]) -> dict[str, Any]:
        """Scores and geometry of the trained network; the isotropy layer is trained first."""
        if self.job.search:
            return self._scores(self.evaluated)
        if isinstance(self.method, IsotropyLayerMethod):
            plain = self._scores(self.evaluated) | {"geometry": self._geometry()}
            layer_history = self._train_layer(self.method)
            found = found | {"finetuned": plain, "layer_losses": layer_history.losses}
            found["layer_seconds_per_epoch"] = float(np.mean(layer_history.seconds))
        after = self._geometry()
        geometry = found["geometry"] | {"after": after}
        return found | self._scores(self.evaluated) | {"geometry": geometry}

    # training

    def _fine_tune(self, history: History) -> None:
        network, settings, method = self.network, self.settings, self.method
        own = list(network.calibration.parameters())
        mine = {id(p) for p in own}
        body = [p for p in network.parameters() if id(p) not in mine]
        groups = [{"params": body, "lr": settings.lr}]
        if own:
            lr = settings.lr if method.own_lr is None else method.own_lr
            groups.append({"params": own, "lr": lr, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(
            groups,
            lr=settings.lr,  # from which the polynomial schedule computes its end
            weight_decay=settings.weight_decay,
            fused=self.device.type == "cuda",
        )
        n_batches = len(self.train.shuffled(settings.batch_size, np.random.default_rng(0)))
        schedule = transformers.get_scheduler(
            settings.schedule, optimizer, 0, n_batches * settings.epochs
        )

        def step(rows: NDArray[np.int64]) -> Tensor:
            batch = self.train.batch(rows)
            with self._precision():
                passed = network(batch)
                loss = passed.loss + self._penalty(passed)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for group in groups:
                torch.nn.utils.clip_grad_norm_(group["params"], settings.clip)
            optimizer.step()
            schedule.step()
            return loss.detach()

        torch.manual_seed(self.job.seed)  # so that dropout is the same for every method
        network.train()
        self._epochs(step, history, settings.epochs, settings.batch_size, network)

    def _penalty(self, passed: Any) -> Tensor:
        """What the method adds to the loss; NaN if features that aren't finite prevent it."""
        try:
            return self.prepared.penalty(passed)
        except (InputError, torch.linalg.LinAlgError):
            if torch.isfinite(passed.features).all():
                raise
            return math.nan

    def _epochs(
        self,
        step: Callable[[NDArray[np.int64]], Tensor],
        history: History,
        n_epochs: int,
        batch_size: int,
        trained: Any,
        before: Callable[[int], None] = lambda epoch: None,
        later: bool = False,
    ) -> None:
        """Train for the epochs, or until the validation score stops improving; keep the best.

        Among equally good epochs that is the first, or the last if `later` is true.
        """
        random = np.random.default_rng([self.job.seed, 0])
        best, state = -math.inf, None
        for epoch in range(n_epochs):
            before(epoch)
            start = self._now()
            losses = torch.stack([step(rows) for rows in self.train.shuffled(batch_size, random)])
            history.seconds.append(self._now() - start)
            history.losses.append(float(losses.double().mean()))
            if not math.isfinite(history.losses[-1]):
                raise Diverged(epoch)
            if self.validation is None:
                continue
            score = self._scores(self.validation)["score"]
            history.validation.append(score)
            rank = -math.inf if math.isnan(score) else score
            if rank > best or state is None or (later and rank == best):
                best, history.best_epoch = rank, epoch + 1
                state = {k: v.detach().clone() for k, v in trained.state_dict().items()}
            elif epoch + 1 - (history.best_epoch or 0) >= self.settings.patience:
                break
        if state is not None:
            trained.load_state_dict(state)

    def _train_layer(self, method: IsotropyLayerMethod) -> History:
        """Train the isotropy layer on vectors that are computed once."""
        network = self.network
        rows = [(passed.features, batch) for passed, batch in self._passed(self.train)]
        n_sides = 2 if self.data.spec.kind == SIAMESE else 1
        features = torch.empty(len(self.train), n_sides, network.n_features, device=self.device)
        for found, batch in rows:
            index = torch.from_numpy(batch.numbers).to(self.device)
            features[index] = found.float().unflatten(0, (n_sides, -1)).transpose(0, 1)
        layer, joint = method.layer(network), JointLoss(method.alpha).to(self.device)
        network.requires_grad_(False)
        network.calibration = layer
        head = getattr(network, "head", torch.nn.Identity())
        parameters = [*layer.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=method.layer_lr, weight_decay=0.0)

        def step(rows: NDArray[np.int64]) -> Tensor:
            index = on_device(rows, self.device)
            calibrated = layer(features[index].transpose(0, 1).flatten(0, 1))
            task_loss, _ = network.judged(calibrated, self.train.labels[index])
            loss = joint(task_loss, log_inverse(isoscore(calibrated)))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.detach()

        history = History()
        torch.manual_seed(self.job.seed)
        network.train()

        def turn(epoch: int) -> None:
            freeze(layer, head, method.variant, epoch)  # type: ignore[arg-type]

        n_epochs, size = method.layer_epochs, method.layer_batch
        self._epochs(step, history, n_epochs, size, network, turn, later=True)
        return history

    # evaluation

    def _passed(self, items: Items) -> Iterator[tuple[Any, TrainingBatch]]:
        """Forward passes over all items, without dropout and gradients."""
        with evaluating(self.network):
            for batch in items.by_length(self.settings.batch_size):
                with self._precision():
                    yield self.network(batch), batch

    def _scores(self, items: Items) -> dict[str, Any]:
        """The task's metrics for the network in its current state."""
        if self.data.spec.kind == GENERATION:
            predicted: Any = self._generated(items)
        else:
            predicted = None
            for passed, batch in self._passed(items):
                scores = passed.scores.float().cpu().numpy()
                if predicted is None:
                    predicted = np.empty((len(items), *scores.shape[1:]), dtype=np.float64)
                predicted[batch.numbers] = scores
        metrics = task_data.scores(self.data, items.part, predicted)
        name, score = next(iter(metrics.items()))
        return {"metric": name, "score": score, "metrics": metrics}

    def _generated(self, items: Items) -> list[str]:
        texts = [""] * len(items)
        with evaluating(self.network):
            for batch in items.by_length(self.settings.batch_size):
                with self._precision():
                    ids = self.network.body.generate(
                        **batch.inputs,
                        max_new_tokens=self.settings.max_target,
                        num_beams=self.settings.beams,
                        do_sample=False,
                    )
                written = self.model.tokenizer.batch_decode(ids, skip_special_tokens=True)
                for number, text in zip(batch.numbers, written, strict=True):
                    texts[number] = text
        return texts

    def _geometry(self) -> dict[str, Any]:
        """Geometry of the evaluated items' features and of the output embeddings.

        None for a tensor that is not finite.
        """
        features, calibrated, n = [], [], 0
        for passed, _ in self._passed(self.evaluated):
            features.append(passed.features.float())
            calibrated.append(passed.calibrated.float())
            n += len(passed.features)
            if n >= MOST_ROWS:
                break
        found = {"features": torch.cat(features)}
        if not isinstance(self.network.calibration, torch.nn.Identity):
            found["calibrated"] = torch.cat(calibrated)
        if self.network.output is not None:
            found["output"] = self.network.output.detach()
        return {name: measured(rows.float().cpu().numpy()) for name, rows in found.items()}

    # the machine

    def _precision(self) -> Any:
        half = self.settings.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _peak(self) -> float:
        """Peak memory in MB: of torch on a GPU in this run, else of the process so far."""
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device)) / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    def _device_name(self) -> str:
        gpu = self.device.type == "cuda"
        return str(torch.cuda.get_device_name(self.device) if gpu else self.device)


def measured(rows: NDArray[np.float32]) -> dict[str, Any] | None:
    """I1, I2, IsoScore and explained variance of rows; None if these are not finite.

    Explained variance is that of the first 1 to 20 components, of the centred and uncentred rows.
    """
    if not np.isfinite(rows).all():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", IsotropyWarning
        )  # about repeated eigenvalues: recorded below
        found = measure(rows, list(GEOMETRY.values()))
    values: dict[str, Any] = {name: float(found.values[of]) for name, of in GEOMETRY.items()}
    statistics = gather(rows, ["moments"])
    for name, center in (("explained_variance", True), ("explained_variance_uncentered", False)):
        values[name] = explained(statistics, N_EXPLAINED, center).round(6).tolist()
    logs = found.drawn.log_partition
    assert logs is not None
    values["i1_one_sign"] = float(np.exp(logs[0].min() - logs[0].max()))  # as the papers take it
    return values | {"n_rows": found.n_samples, "i1_range": found.partition_isotropy_range}
