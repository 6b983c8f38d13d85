"""The Trainer of transformers, with regularisers on tensors of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isotropy.errors import InputError, public
from isotropy.losses.functional import isoscore, mean_cosine
from isotropy.losses.regularizers import Regularizer, Tensors
from isotropy.models import extra

Tensor = Any
extra()  # names the extra if transformers is missing
from transformers import Trainer  # noqa: E402


@public
class IsotropyTrainer(Trainer):
    """A transformers Trainer that adds regularisers on tensors of the model to the loss.

    Parameters
    ----------
    *args, **kwargs
        For `transformers.Trainer`.
    regularizers : mapping
        From a name for the log to a `Regularizer`, or to a mapping with its arguments: what,
        weight, on ("output", "input", "cls" or "hidden:K") and options.

    Notes
    -----
    Output embeddings are the rows of the layer that predicts tokens or classes; [CLS] is the first
    position of the last hidden layer. The rows of a hidden layer are those of all tokens that are
    not padding; for an encoder-decoder, those of the decoder that predict.

    Every logging step logs ``{name}/penalty``, weighted and averaged over the steps since the last
    one, and ``{name}/isoscore`` and ``{name}/mean_cosine`` of the tensor in the last step.
    Evaluation does not use regularisers.

    Examples
    --------
    ::

        trainer = IsotropyTrainer(
            model,
            TrainingArguments("out"),
            train_dataset=train,
            regularizers={"cosine": {"what": "cosine", "weight": 0.1, "on": "cls"}},
        )
        trainer.train()
    """

    def __init__(
        self,
        *args: Any,
        regularizers: Mapping[str, Regularizer | Mapping[str, Any]],
        **kwargs: Any,
    ) -> None:
        self.regularizers = {name: _made(name, one) for name, one in regularizers.items()}
        super().__init__(*args, **kwargs)
        self._sums: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}
        self._n_summed = 0

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if not model.training or not self.regularizers:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs = dict(inputs)
        mask, labels = inputs.get("attention_mask"), inputs.get("labels")
        loss, outputs = super().compute_loss(
            model, inputs | {"output_hidden_states": True}, True, num_items_in_batch
        )
        unwrapped = self.accelerator.unwrap_model(model)
        tensors = tensors_of(unwrapped, outputs, mask, labels)
        penalty = sum(self._penalties(tensors))
        if self._scaled(num_items_in_batch):
            penalty = penalty / self.current_gradient_accumulation_steps
        loss = loss + penalty
        return (loss, outputs) if return_outputs else loss

    def _penalties(self, tensors: Tensors) -> list[Tensor]:
        """The penalty of each regulariser; what will be logged about them is kept."""
        found = []
        for name, regularizer in self.regularizers.items():
            found.append(regularizer(tensors))
            self._sums[name] = self._sums.get(name, 0.0) + found[-1].detach()
            self._last[name] = tensors.on(regularizer.on).detach()
        self._n_summed += 1
        return found

    def _scaled(self, num_items_in_batch: Any) -> bool:
        """Whether the loss is of one of several accumulated batches, and not divided later."""
        takes = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return bool(takes or self.compute_loss_func is not None)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._n_summed:
            logs = logs | self._logged()
            self._sums, self._last, self._n_summed = {}, {}, 0
        super().log(logs, *args, **kwargs)

    def _logged(self) -> dict[str, float]:
        found = {}
        for name, total in self._sums.items():
            found[f"{name}/penalty"] = float(total) / self._n_summed
            rows = self._last[name]
            if len(rows) > 1:
                found[f"{name}/isoscore"] = float(isoscore(rows))
                found[f"{name}/mean_cosine"] = float(mean_cosine(rows))
        return found


def _made(name: str, given: Regularizer | Mapping[str, Any]) -> Regularizer:
    if isinstance(given, Regularizer):
        return given
    if not isinstance(given, Mapping) or "what" not in given:
        raise InputError(
            f"regularizers[{name!r}] must be a Regularizer, or a mapping with what, "
            f"weight and on, got {given!r}."
        )
    return Regularizer(**given)


def tensors_of(model: Any, outputs: Any, mask: Tensor, labels: Tensor) -> Tensors:
    """The tensors of a transformers model that can be regularised."""
    decoder = getattr(outputs, "decoder_hidden_states", None)
    if decoder is not None:
        predicted = None if labels is None else labels != -100
        return Tensors(output_of(model), _weight(model.get_input_embeddings()), None, decoder,
                       predicted)  # fmt: skip
    hidden = getattr(outputs, "hidden_states", None) or ()
    cls = hidden[-1][:, 0] if hidden else None
    return Tensors(output_of(model), _weight(model.get_input_embeddings()), cls, hidden, mask)


def output_of(model: Any) -> Tensor:
    """Weights of the layer that predicts tokens, or else classes; None if there is none."""
    tokens = _weight(model.get_output_embeddings())
    if tokens is not None:
        return tokens
    n_labels = getattr(model.config, "num_labels", None)
    linear = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
    last = linear[-1] if linear else None
    return last.weight if last is not None and last.out_features == n_labels else None


def _weight(layer: Any) -> Tensor:
    return getattr(layer, "weight", None)
