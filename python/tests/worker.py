"""What processes started by spawn and forkserver run."""


def double(x, q):
    x.numpy()[:] *= 2
    q.put(x)
