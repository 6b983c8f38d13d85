"""A repair as an ONNX model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from isotropy._version import __version__
from isotropy.errors import needs, one_line
from isotropy.export._steps import steps_for
from isotropy.repairs import Repair, check_target
from isotropy.repairs.steps import (
    Add,
    Multiply,
    Normalize,
    RemoveByCluster,
    Step,
    Subtract,
    SubtractScaled,
)
from isotropy.sources import output_path
from isotropy.writing import atomic_write, write_errors

OPSET = 18
IR_VERSION = 8  # of the first release with that opset, so that older runtimes load it
INPUT, OUTPUT = "vectors", "repaired"


def exported(repair: Repair, out: Any, overwrite: bool) -> onnx.ModelProto:
    """See `isotropy.export.onnx`."""
    steps = steps_for(repair, "ONNX", "Ship the saved file, and apply it with isotropy.")
    check_target({"out": out}, overwrite=overwrite)
    graph = _Graph()
    last = INPUT
    for step in steps:
        last = _added(graph, step, last)
    graph.node("Identity", last, name=OUTPUT)
    sizes = {INPUT: repair.n_features_in_, OUTPUT: repair._n_features_out}
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in sizes.items()
    }
    made = helper.make_model(
        helper.make_graph(graph.nodes, repair.name, [ends[INPUT]], [ends[OUTPUT]], graph.arrays),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="isotropy",
        producer_version=__version__,
    )
    helper.set_model_props(made, _properties(repair))
    onnx.checker.check_model(made, full_check=True)
    if out is not None:
        target = output_path(out, "out")
        with write_errors(target), atomic_write(target, overwrite=overwrite) as part:
            part.write_bytes(made.SerializeToString())
    return made


def _properties(repair: Repair) -> dict[str, str]:
    params = {name: one_line(value) for name, value in repair.get_params().items()}
    return {
        "isotropy.repair": repair.name,
        "isotropy.params": json.dumps(params),
        "isotropy.origin": json.dumps(repair.origin_.to_dict()),
        "isotropy.note": getattr(repair, "note_", ""),
        "isotropy.version": __version__,
    }


@dataclass
class _Graph:
    """Nodes and constant arrays, each with a name of its own."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, kind: str, *inputs: str, name: str = "", **options: Any) -> str:
        """Add a node and return the name of its output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"node_{name}", **options))
        return name

    def array(self, values: NDArray[Any], dtype: type = np.float32) -> str:
        """Add a constant and return its name."""
        name = f"array_{len(self.arrays)}"
        self.arrays.append(numpy_helper.from_array(values.astype(dtype, order="C"), name))
        return name


def _added(graph: _Graph, step: Step, rows: str) -> str:
    """Add a step that acts on `rows`, and return the name of its result."""
    match step:
        case Subtract(vector):
            return graph.node("Sub", rows, graph.array(vector))
        case Add(vector):
            return graph.node("Add", rows, graph.array(vector))
        case Multiply(matrix):
            return graph.node("MatMul", rows, graph.array(matrix.T))
        case SubtractScaled(direction):
            # in float64: float32 has few digits left of rows that are far from zero
            wide = graph.node("Cast", rows, to=TensorProto.DOUBLE)
            scaled = graph.node("Mul", _norms(graph, wide), graph.array(direction, np.float64))
            return graph.node("Cast", graph.node("Sub", wide, scaled), to=TensorProto.FLOAT)
        case Normalize():
            norms = _norms(graph, rows)
            there = graph.node("Greater", norms, graph.array(np.zeros(1)))
            safe = graph.node("Where", there, norms, graph.array(np.ones(1)))
            return graph.node("Div", rows, safe)
        case RemoveByCluster():
            return _removed(graph, step, rows)


def _norms(graph: _Graph, rows: str) -> str:
    """Norms of the rows as one column."""
    return graph.node("ReduceL2", rows, graph.array(np.array([1]), np.int64), keepdims=1)


def _removed(graph: _Graph, step: RemoveByCluster, rows: str) -> str:
    """In products of two dimensions: those with other clusters' components are set to zero."""
    n_clusters, n_removed, n_features = step.components.shape
    origin = step.centers.mean(0)
    apart = step.centers - origin
    moved = graph.node("Sub", rows, graph.array(origin))
    products = graph.node("MatMul", moved, graph.array(apart.T))
    scores = graph.node("Sub", products, graph.array((apart * apart).sum(1) / 2))
    nearest = graph.node("ArgMax", scores, axis=1, keepdims=0)
    width = graph.array(np.array(n_clusters), np.int64)
    own = graph.node("OneHot", nearest, width, graph.array(np.array([0.0, 1.0])), axis=-1)
    centred = graph.node("Sub", rows, graph.node("MatMul", own, graph.array(step.means)))
    if n_removed == 0:
        return centred
    components = step.components.reshape(-1, n_features)
    spread = np.repeat(np.eye(n_clusters), n_removed, axis=1)
    kept = graph.node("MatMul", own, graph.array(spread))
    along = graph.node("MatMul", centred, graph.array(components.T))
    removed = graph.node("MatMul", graph.node("Mul", along, kept), graph.array(components))
    return graph.node("Sub", centred, removed)


def run(path: Any, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the model in a file makes of rows, in onnxruntime."""
    with needs("onnxruntime", "onnx"):
        import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run([OUTPUT], {INPUT: rows})
    return np.asarray(found)
