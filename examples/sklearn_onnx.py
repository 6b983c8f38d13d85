"""A scikit-learn pipeline with a repair as one ONNX model, through a converter for skl2onnx.

pip install "isotropy[onnx,demo]" skl2onnx
python examples/sklearn_onnx.py
"""

import numpy as np
import onnxruntime
from onnx import helper
from skl2onnx import to_onnx, update_registered_converter
from skl2onnx.common.data_types import FloatTensorType
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import isotropy
from isotropy.repairs import Repair


def declare_shape(operator):
    """Tell skl2onnx how wide the repaired rows are."""
    width = len(operator.raw_operator.get_feature_names_out())
    operator.outputs[0].type = FloatTensorType([None, width])


def convert(scope, operator, container):
    """Copy the nodes of the exported repair into the model of the pipeline."""
    graph = isotropy.export.onnx(operator.raw_operator).graph
    names = {
        graph.input[0].name: operator.inputs[0].full_name,
        graph.output[0].name: operator.outputs[0].full_name,
    }
    parts = [part.name for part in graph.initializer]
    parts += [name for node in graph.node for name in node.output if name not in names]
    names |= {part: scope.get_unique_variable_name(part) for part in parts}
    for part in graph.initializer:
        container.add_initializer(names[part.name], part.data_type, part.dims, part)
    for node in graph.node:
        container.add_node(
            node.op_type,
            [names[name] for name in node.input],
            [names[name] for name in node.output],
            op_version=18,
            name=scope.get_unique_operator_name(node.op_type),
            **{option.name: helper.get_attribute_value(option) for option in node.attribute},
        )


for kind in Repair.by_name.values():
    update_registered_converter(kind, f"Isotropy{kind.__name__}", declare_shape, convert)

words = isotropy.examples.wordllama()
names = [word for word in words.row_of if word.isalpha() and word.isascii()]
X = words.vectors[[words.row_of[name] for name in names]]
y = np.array([name.istitle() for name in names])

for repair in (isotropy.Whiten(), isotropy.ClusterRemoval(8, 3)):
    pipeline = make_pipeline(repair, LogisticRegression(max_iter=1000)).fit(X[::2], y[::2])
    options = {LogisticRegression: {"zipmap": False}}
    model = to_onnx(pipeline, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    _, found = session.run(None, {"X": X[1::2]})
    apart = np.abs(found - pipeline.predict_proba(X[1::2])).max()
    print(f"{repair}: largest difference of a probability {apart:.0e}")
