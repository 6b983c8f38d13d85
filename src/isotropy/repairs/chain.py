"""Several repairs as one: each is fitted on what those before it return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from numpy.typing import NDArray
from sklearn.base import clone

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint
from isotropy.errors import InputError, brief, public
from isotropy.linalg import Floats
from isotropy.repairs import files
from isotropy.repairs.base import Invertible, Repair, ungrouped
from isotropy.repairs.steps import Step, folded
from isotropy.repairs.trained import LearnedLayer
from isotropy.sources import MappedSource, Source


@public
@dataclass(eq=False, repr=False)
class Chain(Invertible):
    """Repair the rows with one repair after another, and save all of them in one file.

    Parameters
    ----------
    repairs : list of Repair
        At least one; each is cloned, and fitted on the rows that those before it return. Their
        parameters are `whiten__power` and so on, by the name of the repair; if there are several of
        one name, `whiten_1__power` and `whiten_2__power`.

    Attributes
    ----------
    repairs_ : list of Repair
        The fitted repairs.

    Notes
    -----
    Every repair is fitted in passes of its own, in which the rows are repaired as they are read: no
    copy of them is kept. Affine if all repairs are: `affine` multiplies their matrices.
    `inverse_transform` exists if all of them have one. `shift` and `drift` compare with the rows
    that the first repair was fitted on.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy.repairs import Center, Whiten
    >>> X = np.random.default_rng(0).standard_normal((500, 3)) * [9.0, 3.0, 1.0] + 5
    >>> repair = Chain([Center(normalize=True), Whiten()]).fit(X)
    >>> np.cov(repair.transform(X).T).round(6) + 0.0
    array([[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]])
    >>> repair.set_params(whiten__power=0.5).repairs
    [Center(normalize=True), Whiten(power=0.5)]
    """

    name = "chain"
    on_request = True

    repairs: Sequence[Repair]
    normalize: bool = False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` those of the repairs too."""
        found: dict[str, Any] = super().get_params(deep=False)
        for name, repair in self._named() if deep else ():
            found[name] = repair
            found |= {f"{name}__{key}": value for key, value in repair.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters: those of a repair are `whiten__power`, and `whiten` is the repair."""
        if "repairs" in params:
            self.repairs = params.pop("repairs")
        named = self._named()
        if params.keys() & dict(named):
            self.repairs = [params.pop(name, repair) for name, repair in named]
        return cast(Self, super().set_params(**params))

    def _named(self) -> list[tuple[str, Repair]]:
        """The repairs by the names that their parameters begin with."""
        given = self.repairs if isinstance(self.repairs, (list, tuple)) else []
        known = [repair for repair in given if isinstance(repair, Repair)]
        names = [repair.name.replace("-", "_") for repair in known]
        total, seen = Counter(names), Counter[str]()
        found = []
        for name, repair in zip(names, known, strict=True):
            seen[name] += 1
            found.append((f"{name}_{seen[name]}" if total[name] > 1 else name, repair))
        return found

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.repairs, (list, tuple)) or not self.repairs:
            raise InputError(f"repairs must be a list of repairs, got {brief(self.repairs)}.")
        for repair in self.repairs:
            if not isinstance(repair, Repair) or repair.grouped:
                raise InputError(f"repairs must be repairs of rows, got {brief(repair)}.")
            if isinstance(repair, LearnedLayer):
                raise InputError(
                    "repairs must be fitted without labels, got LearnedLayer. Fit it by itself."
                )
            repair._check_params()

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        fitted: list[Repair] = []
        for repair in self.repairs:
            one = clone(repair)
            one.n_features_in_ = source.n_features
            one._check_params()
            try:
                fitted.append(one._learn(source, checkpoint))
            except InputError as error:
                raise InputError(str(error)) from error
            source = Repaired(source, one)
        self._keep(fitted)
        self.held_out_ = fitted[0].held_out_
        return fitted[0].n_samples_seen_

    def _keep(self, fitted: list[Repair]) -> None:
        self.repairs_ = fitted
        self.moments_ = fitted[0].moments_

    def apply(self, rows: Array, out: Array) -> None:
        for repair in self.repairs_[:-1]:
            found = linalg.empty((rows.shape[0], repair._n_features_out), rows)
            repair._finished(rows, found)
            rows = found
        self.repairs_[-1]._finished(rows, out)

    def revert(self, rows: Array, out: Array) -> None:
        for repair in reversed(self.repairs_):
            found = linalg.empty((rows.shape[0], int(repair.n_features_in_)), rows)
            cast(Invertible, repair).revert(rows, found)
            rows = found
        out[:] = rows

    @property
    def _has_inverse(self) -> bool:
        parts = getattr(self, "repairs_", self.repairs)
        return super()._has_inverse and all(hasattr(one, "inverse_transform") for one in parts)

    @property
    def _in_float64(self) -> bool:
        return any(repair._in_float64 for repair in self.repairs_)

    def affine_form(self) -> tuple[Floats, Floats]:
        matrix, bias = self.repairs_[0].affine()
        for repair in self.repairs_[1:]:
            A, b = repair.affine()
            matrix, bias = A @ matrix, A @ bias + b
        return matrix, bias

    def own_steps(self) -> list[Step]:
        steps = [step for repair in self.repairs_ for step in repair.steps()]
        return folded(steps, getattr(self.moments_, "mean", None))

    @property
    def _n_features_out(self) -> int:
        return self.repairs_[-1]._n_features_out

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the output columns, which are those of the last repair."""
        names = super().get_feature_names_out(input_features)
        for repair in self.repairs_:
            names = repair.get_feature_names_out(names)
        return names

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "repairs_")

    # The file: what every repair has, and the arrays of repair i as "part/i/..."

    def _params(self) -> dict[str, Any]:
        inner = [{"method": one.name, "params": one._params()} for one in self.repairs_]
        return {"repairs": inner, "normalize": self.normalize}

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return files.numbered("part", [one._arrays() for one in self.repairs_])

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return files.numbered("part", [one._tensors() for one in self.repairs_])

    @classmethod
    def _from_file(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        files.check_header(header, cls.__name__, ["repairs", "normalize"])
        inner = files.expect(header["params"].get("repairs"), list, "repairs", "a list")
        known, n_features = ungrouped(), header["n_features"]
        fitted: list[Repair] = []
        for one, own in zip(inner, files.by_number("part", tensors, len(inner)), strict=True):
            files.expect(one, dict, "a repair", "an object")
            kind = known[checks.choice(one.get("method"), "the repair", list(known))]
            shared = {"n_samples": header["n_samples"], "note": ""}
            described = {"n_features": n_features, "params": one.get("params")}
            fitted.append(kind._from_file(shared | described, own))
            n_features = fitted[-1]._n_features_out
        normalize = header["params"].get("normalize", False)
        self = cls([clone(repair) for repair in fitted], normalize)
        self.n_features_in_ = header["n_features"]
        self._check_params()
        self._keep(fitted)
        self._restore(header, {})
        return self


class Repaired(MappedSource):
    """The rows of a source, repaired as they are read."""

    def __init__(self, source: Source, repair: Repair) -> None:
        super().__init__(source, repair._repaired, repair._n_features_out)
        self._job = repair._job()

    def identity(self) -> dict[str, Any] | None:
        found = self.source.identity()
        return found and found | {"repaired": [*found.get("repaired", []), self._job]}
