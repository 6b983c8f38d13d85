"""Defaults of the isotropy layer and IsoBN, wherever they are used.

Those of regularisers are in `Regularizer`. The paper on the isotropy layer states alpha and
smoothing only; the others suit vectors of some hundred features, as language models have them.
"""

ALPHA = 0.5  # weight of the task's loss in the joint loss
SMOOTHING = 0.15  # of the moving means in the joint loss
LAYER_EPOCHS = 20
LAYER_BATCH = 256
LAYER_LR = 1e-4
PATIENCE = 3  # epochs without a better validation score before training stops
MOMENTUM = 0.05  # of IsoBN's statistics
EPS = 1e-3  # of IsoBN
