"""On PyTorch: a function of tensors, recorded once and played without Keras.

Keras takes a third of a millisecond for each call of a layer on PyTorch, which
is half of a greedy step at base size. What a function does to tensors of one
shape is always the same; so it is written down at the first call, and done
again without the layers.
"""

import operator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

# Gives Python a number, on which may hang what is done next.
NUMBER = torch.ops.aten._local_scalar_dense.default


class Recorded:
    """A function that is recorded at its first call with tensors of a shape.

    At the second call the record is held against the function. Where they
    differ, or where the function reads numbers from tensors, it is called
    itself from then on. Weights are read anew each time; after others have
    taken their place, call `forget`.

    Args:
        function: a function of structures of tensors, giving another. It may
            write to what it is given.
    """

    def __init__(self, function):
        self.function = function
        self.records = {}  # by shapes; None where there can be none
        self.checked = set()

    def forget(self):
        """Drops what is recorded."""
        self.records.clear()
        self.checked.clear()

    def __call__(self, *arguments):
        leaves, form = tree_flatten(arguments)
        if not all(isinstance(x, torch.Tensor) for x in leaves):
            return self.function(*arguments)
        # What is written down is right for one order in memory.
        leaves = [x.contiguous() for x in leaves]
        arguments = tree_unflatten(leaves, form)
        key = (form, *((tuple(x.shape), x.dtype, x.device) for x in leaves))
        if key not in self.records:
            result, self.records[key] = _record(self.function, leaves, form)
            return result
        if self.records[key] is None:
            return self.function(*arguments)
        program, form = self.records[key]
        if key in self.checked:
            return tree_unflatten(program(*leaves), form)
        copies = [x.clone() for x in leaves]
        result = self.function(*arguments)
        same = _same(program(*copies), tree_flatten(result)[0])
        self.checked.add(key)
        if not same:
            self.records[key] = None
        return result


class _Record(TorchDispatchMode):
    """Writes down every operation that is done while it is entered."""

    def __init__(self, inputs):
        super().__init__()
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.nodes, self.tensors = {}, []  # by the tensors' ids, so these stay
        self.reads_numbers = False
        for i, tensor in enumerate(inputs):
            self._is(tensor, self.graph.placeholder(f"input_{i}"))

    def _is(self, tensor, node):
        self.nodes[id(tensor)] = node
        self.tensors.append(tensor)

    def node(self, tensor):
        """What a tensor is in the record: a constant, if from outside."""
        if id(tensor) not in self.nodes:
            name = f"constant_{len(self.tensors)}"
            self.root.register_buffer(name, tensor)
            self._is(tensor, self.graph.get_attr(name))
        return self.nodes[id(tensor)]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        self.reads_numbers |= function is NUMBER
        given = tree_map_only(torch.Tensor, self.node, (args, kwargs))
        node = self.graph.call_function(function, *given)
        if isinstance(result, torch.Tensor):
            self._is(result, node)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    part_node = self.graph.call_function(operator.getitem, (node, i))
                    self._is(part, part_node)
        return result


def _record(function, leaves, form):
    """Calls a function: gives its result and its record, or None for that."""
    # One tensor that stands in two places may be two in the next call.
    places = {id(x): i for i, x in enumerate(leaves)}
    leaves = [x if places[id(x)] == i else x.clone() for i, x in enumerate(leaves)]
    with _Record(leaves) as record:
        result = function(*tree_unflatten(leaves, form))
    parts, form = tree_flatten(result)
    tensors = all(isinstance(x, torch.Tensor) for x in parts)
    if record.reads_numbers or not tensors:
        return result, None
    record.graph.output([record.node(x) for x in parts])
    return result, (torch.fx.GraphModule(record.root, record.graph), form)


def _same(found, wanted):
    pairs = zip(found, wanted, strict=True)
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in pairs
    )
