"""Find in the autograd graph what no call told: uses of a parameter by which it still reaches the output.

A model that differentiates inside of its forward pass (an energy and its forces, a Hamiltonian, a
physics-informed loss) uses its weights again where the gradient is computed; so may compiled code, forward
mode and functions with a backward pass of their own. None of it passes through a torch function. But each
such use is an arrow of the graph towards the parameter, and the recorded calls account for theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from repalign.tangent.recorder import Recorder

Arrow = tuple[Node, Node, int]  # from a node, to a node, and which of that one's outputs


def unseen(f: Tensor, parameters: dict[str, Tensor], recorder: Recorder, shared: Collection[int]) -> set[str]:
    """The parameters that f depends on by more than the recorded calls.

    Of a lookup that all samples share, what is done with the rows found counts as a use of the table.
    """
    if f.grad_fn is None:
        return set()
    homes = {get_gradient_edge(p).node: name for name, p in parameters.items()}
    owners = recorder.owners()
    heads: dict[Node, dict[int, set[str]]] = defaultdict(dict)  # where calls returned
    for i, (edge, names) in enumerate(zip(recorder.edges, owners, strict=True)):
        if i not in shared:
            heads[edge.node].setdefault(edge.output_nr, set()).update(names)
    told: set[Arrow] = set()
    inside: dict[Node, set[str]] = {home: {name} for home, name in homes.items()}
    ends = heads.keys() | homes.keys()
    for edge, names, before in zip(recorder.edges, owners, recorder.before, strict=True):
        for arrow in _arrows(edge.node, ends, before):
            node = arrow[1]
            if node in homes:
                told.add(arrow)
            elif node not in heads and node not in before:
                told.add(arrow)
                inside.setdefault(node, set()).update(names)
    found: set[str] = set()
    for arrow in _arrows(f.grad_fn, homes):
        _, node, which = arrow
        if node in inside and arrow not in told:
            found |= inside[node]
        elif node in heads and which not in heads[node]:  # what a call returned beside its output
            found |= set().union(*heads[node].values())
    return found


def _arrows(start: Node, ends: Collection[Node], more: Collection[Node] = ()) -> Iterator[Arrow]:
    """All arrows from a node downwards, without those behind the ends, and behind more ends."""
    waiting, met = [start], {start}
    while waiting:
        node = waiting.pop()
        for following, which in node.next_functions:
            if following is None:
                continue
            yield node, following, which
            if following not in met and following not in ends and following not in more:
                met.add(following)
                waiting.append(following)
