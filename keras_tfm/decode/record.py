"""On PyTorch: a function of tensors, recorded once and played without Keras.

Keras takes a third of a millisecond for each call of a layer on PyTorch, which
is half of a greedy step at base size. What a function does to tensors of one
shape is mostly the same; so it is written down at the first call, and done
again without the layers.
"""

import operator
import threading

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

MOST = 64  # records that are kept
# What a call draws, or what hangs on the values of tensors, is no record.
CHANGING = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}
# What gives Python the values of tensors, and is no operation.
READING = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.__array__,
    torch.Tensor.equal,
    torch.equal,
}


class Recorded:
    """A function that is recorded at its first call with tensors of a shape.

    At the second call the record is held against the function. Where they
    differ, or where the function draws or reads the values of tensors, it is
    called itself from then on. Otherwise it has to be a function of its
    arguments alone: what else it looked at is as it was when it was recorded.
    Weights may be assigned; after others have taken their place, call `forget`.

    Args:
        function: a function of structures of tensors, giving another. It may
            write to what it is given.
    """

    def __init__(self, function):
        self.function = function
        self.lock = threading.RLock()
        self.records = {}  # by shapes: a record, and whether it is held to be right

    def forget(self):
        """Drops what is recorded."""
        with self.lock:
            self.records.clear()

    def __call__(self, *arguments):
        leaves, form = tree_flatten(arguments)
        if not all(isinstance(x, torch.Tensor) for x in leaves):
            return self.function(*arguments)
        # What is written down is right for one order in memory.
        leaves = [x.contiguous() for x in leaves]
        key = (form, *((tuple(x.shape), x.dtype, x.device) for x in leaves))
        key += (torch.is_autocast_enabled(leaves[0].device.type),) if leaves else ()
        record, right = self.records.get(key, (None, False))
        if right:
            return self.function(*arguments) if record is None else record(leaves)
        with self.lock:
            return self._prepare(key, leaves, form)

    def _prepare(self, key, leaves, form):
        """Records or checks a record, and gives the result of the call."""
        record, right = self.records.get(key, (None, True))
        if key not in self.records:
            result, record = _record(self.function, leaves, form)
            if len(self.records) >= MOST:
                del self.records[next(iter(self.records))]
            self.records[key] = record, record is None
            return result
        if record is None or right:  # another thread was here before
            return self.function(*tree_unflatten(leaves, form))
        copies = [x.clone() for x in leaves]
        result = self.function(*tree_unflatten(leaves, form))
        self.records[key] = (record if _same(record, copies, result) else None), True
        return result


class _Reading(TorchFunctionMode):
    """Sees whether values of tensors are read past the operations."""

    def __init__(self):
        super().__init__()
        self.seen = False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen |= function in READING
        return function(*args, **(kwargs or {}))


class _Recording(TorchDispatchMode):
    """Writes down every operation that is done while it is entered."""

    def __init__(self, inputs):
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}
        self.nodes, self.tensors = {}, []  # by the tensors' ids, so these stay
        self.storages = set()  # of constants
        self.fails = False
        for i, tensor in enumerate(inputs):
            self._is(tensor, self.graph.placeholder(f"input_{i}"))

    def _is(self, tensor, node):
        self.nodes[id(tensor)] = node
        self.tensors.append(tensor)

    def node(self, tensor):
        """What a tensor is in the record: a constant, if from outside."""
        if id(tensor) not in self.nodes:
            name = f"constant_{len(self.tensors)}"
            self.constants[name] = tensor
            self.storages.add(tensor.untyped_storage().data_ptr())
            self._is(tensor, self.graph.get_attr(name))
        return self.nodes[id(tensor)]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given = tree_map_only(torch.Tensor, self.node, (args, kwargs))
        parts = result if isinstance(result, (tuple, list)) else [result]
        self.fails |= (
            _changes(function, args)
            or not all(isinstance(x, (torch.Tensor, type(None))) for x in parts)
            or any(isinstance(x, torch.Generator) for x in tree_flatten(given)[0])
            or self._writes_constant(function, args, kwargs)
        )
        if self.fails:
            return result
        node = self.graph.call_function(function, *given)
        if isinstance(result, torch.Tensor):
            self._is(result, node)
            return result
        for i, part in enumerate(parts):
            if part is not None:
                self._is(part, self.graph.call_function(operator.getitem, (node, i)))
        return result

    def _writes_constant(self, function, args, kwargs):
        """Whether it writes to what would hold that write in the next call."""
        schema = function._schema
        if not schema.is_mutable:
            return False
        written = []
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append(args[i] if i < len(args) else kwargs.get(argument.name))
        tensors = (x for x in tree_flatten(written)[0] if isinstance(x, torch.Tensor))
        return any(x.untyped_storage().data_ptr() in self.storages for x in tensors)


def _changes(function, args):
    if function is torch.ops.aten.index.Tensor:  # by numbers, not by truth
        return any(x is not None and x.dtype == torch.bool for x in args[1])
    return bool(CHANGING & set(function.tags))


def _record(function, leaves, form):
    """Calls a function: gives its result and its record, or None for that."""
    # One tensor that stands in two places may be two in the next call.
    places = {id(x): i for i, x in enumerate(leaves)}
    leaves = [x if places[id(x)] == i else x.clone() for i, x in enumerate(leaves)]
    with _Reading() as reading, _Recording(leaves) as recording:
        result = function(*tree_unflatten(leaves, form))
    parts, form = tree_flatten(result)
    tensors = all(isinstance(x, torch.Tensor) for x in parts)
    if reading.seen or recording.fails or not tensors:
        return result, None
    recording.graph.output([recording.node(x) for x in parts])
    root = torch.nn.Module()
    for name, tensor in recording.constants.items():
        root.register_buffer(name, tensor)
    # Not as a GraphModule: PyTorch keeps the source of each for ever.
    code = recording.graph.python_code(root_module="self")
    names = dict(code.globals)
    exec(code.src, names)
    forward = names["forward"]
    return result, lambda leaves: tree_unflatten(forward(root, *leaves), form)


def _same(record, leaves, wanted):
    """Whether a record gives what the function has given."""
    try:
        found, form = tree_flatten(record(leaves))
    except Exception:  # whatever it is, the function itself does without
        return False
    wanted, wanted_form = tree_flatten(wanted)
    return form == wanted_form and all(map(_equal, found, wanted))


def _equal(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
