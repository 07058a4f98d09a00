"""Structured derivatives of neural-tangents, in a process and an environment of their own.

neural-tangents 0.6.5 needs jax 0.4.25 or older, and with it numpy below 2, where this package does not
run. ``make bench`` makes that environment; bench_tangent.py starts this file with its interpreter and asks
for one run per line.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np


def kernel(weights, x, chosen):
    """The kernel of some weights of the ReLU network, compiled.

    All weights are arguments: as constants they would be folded, slowly, while compiling.
    """

    @jax.jit
    def compiled(x, weights):
        def f(some, inputs):
            full = list(weights)
            for place, w in zip(chosen, some, strict=True):
                full[place] = w
            for w in full[:-1]:
                inputs = jax.nn.relu(inputs @ w)
            return inputs @ full[-1]

        how = nt.NtkImplementation.STRUCTURED_DERIVATIVES
        ntk = nt.empirical_ntk_fn(f, implementation=how, trace_axes=(), vmap_axes=0)
        return ntk(x, None, [weights[i] for i in chosen])

    return lambda: compiled(x, weights).block_until_ready()


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def main():
    given, what = np.load(sys.argv[1]), sys.argv[2]
    x = jnp.asarray(given["x"])
    # Inputs by outputs: a transposed weight hides the layer's structure from it, and costs a hundredfold.
    weights = [jnp.asarray(given[f"w{i}"].T) for i in range(len(given.files) - 1)]
    everything = list(range(len(weights)))
    sets = [everything] if what == "ntk" else [[i] for i in everything]
    kernels = [kernel(weights, x, chosen) for chosen in sets]
    before = status("VmRSS")
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.process_time()
        found = [k() for k in kernels]
        processor = time.process_time() - start
        if line.strip() == "save":
            np.savez(sys.argv[1] + ".out.npz", *[np.asarray(k).transpose(0, 2, 1, 3) for k in found])
        del found
        print(status("VmHWM") - before, processor, flush=True)


if __name__ == "__main__":
    main()
