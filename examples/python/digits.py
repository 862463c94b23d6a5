"""The digits: 8×8 pictures, and a small network in NumPy whose parameters may lie anywhere."""

from pathlib import Path

import baton
import numpy as np

DATA = Path(__file__).resolve().parents[2] / "internal" / "digits" / "data"


def load():
    """Training and test pictures and labels: mapped files, shared by all processes."""
    images = baton.load(DATA / "digits-images.npy").numpy().reshape(-1, 64) / np.float32(16)
    labels = baton.load(DATA / "digits-labels.npy").numpy().astype("int64")
    test = np.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def parameters(hidden=32, seed=0):
    """The parameters of a network at its start."""
    random = np.random.default_rng(seed)
    return {
        "w1": random.normal(0, 0.2, (64, hidden)).astype("float32"),
        "b1": np.zeros(hidden, "float32"),
        "w2": random.normal(0, 0.2, (hidden, 10)).astype("float32"),
        "b2": np.zeros(10, "float32"),
        "step": np.zeros(1, "int64"),
    }


def scores(p, x):
    """What the network thinks of pictures, and its hidden layer."""
    h = np.maximum(x @ p["w1"] + p["b1"], 0)
    return h @ p["w2"] + p["b2"], h


def accuracy(p, x, y):
    """The share of pictures that the network knows."""
    return float((scores(p, x)[0].argmax(1) == y).mean())


def train(p, x, y, rate=0.2):
    """One step of gradient descent, in place."""
    s, h = scores(p, x)
    e = np.exp(s - s.max(1, keepdims=True))
    d = e / e.sum(1, keepdims=True)
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    back = (d @ p["w2"].T) * (h > 0)
    p["w2"] -= rate * (h.T @ d)
    p["b2"] -= rate * d.sum(0)
    p["w1"] -= rate * (x.T @ back)
    p["b1"] -= rate * back.sum(0)
    p["step"] += 1
