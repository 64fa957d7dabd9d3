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
from torch.utils.weak import WeakIdKeyDictionary

from keras_tfm.runtime.prepacked import PRODUCTS, TURNING, Packed, Weight

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
    Weights may be assigned; call `look` where that may have been past PyTorch's
    count of versions, and `forget` after others have taken their place.

    Args:
        function: a function of structures of tensors, giving another. It may
            write to what it is given.
        narrow: bool. Products by weights are of numbers in bfloat16.
    """

    def __init__(self, function, narrow=False):
        self.function = function
        self.narrow = narrow
        self.lock = threading.RLock()
        self.records = {}  # by shapes: a record, and whether it is held to be right
        self.packed = {}  # weights, for all records

    def look(self):
        """Looks whether weights have changed, as far as that can be seen."""
        for packed in [*self.packed.values()]:
            packed.look()

    def forget(self):
        """Drops what is recorded."""
        with self.lock:
            self.records.clear()
            self.packed.clear()

    def __call__(self, *arguments):
        leaves, form = tree_flatten(arguments)
        if not all(isinstance(x, torch.Tensor) for x in leaves):
            return self.function(*arguments)
        # What is written down is right for one order in memory.
        leaves = [x.contiguous() for x in leaves]
        key = (form, *((tuple(x.shape), x.dtype, x.device) for x in leaves))
        kind = leaves[0].device.type if leaves else "cpu"
        if torch.is_autocast_enabled(kind):
            key += (torch.get_autocast_dtype(kind),)
        record, right = self.records.get(key, (None, False))
        if right:
            return self.function(*arguments) if record is None else record(leaves, True)
        with self.lock:
            copies = [x.clone() for x in leaves] if self.narrow else None
            result = self._prepare(key, leaves, form)
            record, _ = self.records[key]
            if copies is None or record is None:
                return result
            return record(copies, True)  # the same as at every other call

    def _prepare(self, key, leaves, form):
        """Records or checks a record, and gives the result of the call."""
        record, right = self.records.get(key, (None, True))
        if key not in self.records:
            result, record = _record(
                self.function, leaves, form, self.packed, self.narrow
            )
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
    """Writes down every operation that is done while it is entered.

    Args:
        inputs: tensors.
        packed: a dictionary of `Packed`, which it adds to.
        narrow: bool, of `Packed`.
    """

    def __init__(self, inputs, packed, narrow):
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}
        self.nodes = WeakIdKeyDictionary()  # of tensors: they may go
        self.weights = WeakIdKeyDictionary()  # constants, and these turned
        self.packed, self.used, self.narrow = packed, {}, narrow
        self.storages, self.written = set(), set()  # of constants; written to
        self.fails = False
        self.fast = self.graph.placeholder("fast")
        for i, tensor in enumerate(inputs):
            self.nodes[tensor] = self.graph.placeholder(f"input_{i}")

    def node(self, tensor):
        """What a tensor is in the record: a constant, if from outside."""
        if tensor not in self.nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self.storages.add(_storage(tensor))
            self.nodes[tensor] = self.graph.get_attr(name)
            self.weights[tensor] = Weight(tensor)
        return self.nodes[tensor]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # what it is made of, where it is made of others
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = function(*args, **kwargs)
        if args and result is args[0] and not function._schema.is_mutable:
            return result
        given = tree_map_only(torch.Tensor, self.node, (args, kwargs))
        parts = result if isinstance(result, (tuple, list)) else [result]
        self.fails |= (
            self._changes(function, args)
            or not all(isinstance(x, (torch.Tensor, type(None))) for x in parts)
            or self._writes_constant(function, args, kwargs)
        )
        if self.fails:
            return result
        if isinstance(result, torch.Tensor):
            node = self._product(function, args, given[0])
            self.nodes[result] = node or self.graph.call_function(function, *given)
            if function in TURNING and args[0] in self.weights:
                weight = self.weights[args[0]].turned(function, args[1:], kwargs)
                self.weights[result] = weight
            return result
        node = self.graph.call_function(function, *given)
        for i, part in enumerate(parts):
            if part is not None:
                item = self.graph.call_function(operator.getitem, (node, i))
                self.nodes[part] = item
        return result

    def _product(self, function, args, given):
        """The node of a product by a weight; or None."""
        if function not in PRODUCTS or args[1] not in self.weights:
            return None
        weight = self.weights[args[1]]
        if _storage(args[1]) in self.written or not Packed.fits(weight, args[1]):
            return None
        packed = self.packed.setdefault(weight.key(), Packed(weight, self.narrow))
        name = self.used.setdefault(packed, f"packed_{len(self.used)}")
        return self.graph.call_module(name, (given[0], self.fast))

    def _changes(self, function, args):
        """Whether another call may do something else here."""
        if function is torch.ops.aten.index.Tensor:  # by numbers, not by truth
            return any(x is not None and x.dtype == torch.bool for x in args[1])
        changing = CHANGING & set(function.tags)
        if not changing or torch.Tag.nondeterministic_seeded in changing:
            return bool(changing)
        tensors = (x for x in tree_flatten(args)[0] if isinstance(x, torch.Tensor))
        return not all(x in self.weights for x in tensors)

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
        written = {*map(_storage, tensors)}
        self.written |= written
        return bool(written & self.storages)


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _record(function, leaves, form, packed, narrow):
    """Calls a function: gives its result and its record, or None for that."""
    # One tensor that stands in two places may be two in the next call.
    places = {id(x): i for i, x in enumerate(leaves)}
    leaves = [x if places[id(x)] == i else x.clone() for i, x in enumerate(leaves)]
    with _Reading() as reading, _Recording(leaves, packed, narrow) as recording:
        result = function(*tree_unflatten(leaves, form))
    parts, form = tree_flatten(result)
    tensors = all(isinstance(x, torch.Tensor) for x in parts)
    if reading.seen or recording.fails or not tensors:
        return result, None
    graph = recording.graph
    graph.output([recording.node(x) for x in parts])
    graph.owning_module = root = torch.nn.Module()
    for name, tensor in recording.constants.items():
        root.register_buffer(name, tensor)
    for packed, name in recording.used.items():
        root.add_module(name, packed)
    graph.eliminate_dead_code()  # such as the turning of packed weights
    # Not as a GraphModule: PyTorch keeps the source of each for ever.
    code = graph.python_code(root_module="self")
    names = dict(code.globals)
    exec(code.src, names)
    forward = names["forward"]

    def record(leaves, fast=False):
        return tree_unflatten(forward(root, fast, *leaves), form)

    return result, record


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
