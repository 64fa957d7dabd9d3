"""Captures a function of PyTorch tensors once and replays it without Keras.

On PyTorch Keras takes a third of a millisecond for each call of a layer, half
the time of a greedy step at base size. What a function does to tensors of one
shape is almost always the same. So its operations are captured at the first
call, checked at the second and replayed from then on, as with CUDA graphs.

Private API, tested with torch 2.13: `torch.utils._python_dispatch`,
`torch.utils._pytree`, `torch.overrides`, `OpOverload._schema` and `decompose`,
and `exec` of the source that `torch.fx.Graph` writes. `probe` raises where it
is missing; decoding then calls the layers, which gives the same ids but takes
longer.
"""

import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.weak import WeakIdKeyDictionary

from keras_tfm.runtime.prepacked import (
    MATRIX_PRODUCTS,
    VIEW_OPERATIONS,
    DerivedWeight,
    PrepackedProduct,
)

MAX_GRAPHS = 64  # of one function; then the oldest is dropped
# The result of such an operation depends on chance or on values of tensors.
UNREPEATABLE = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}
# These hand values of tensors to Python, past the operations.
VALUE_READS = {
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
    torch.Tensor.equal,
    torch.equal,
}


class CapturedFunction:
    """Replays a function that was captured for tensors of the same shapes.

    The second call for a shape compares the replay with the function. Where
    they differ, or where the function draws random numbers or reads the values
    of tensors, the function itself is called from then on. Otherwise it must
    depend on its arguments alone: everything else is as it was when captured.
    Weights may be assigned. Call `check_weights` where a write may have passed
    PyTorch's version counter, and `clear` after weights were replaced.

    Args:
        function: function of structures of tensors that returns another. It
            may write to its arguments.
        precision: str, that of products by weights, as
            `Options.matmul_precision`.
        products: dict of the `PrepackedProduct` of each weight, which several
            functions of one model share; or None.
        max_operations: int >= 1, or None. A longer graph is not replayed.

    Example:
        ```python
        import torch
        from keras_tfm.runtime.capture import CapturedFunction

        double = CapturedFunction(lambda x: 2 * x)
        with torch.inference_mode():
            for _ in range(3):  # capture, check, replay
                assert double(torch.ones(2)).tolist() == [2.0, 2.0]
        ```
    """

    def __init__(
        self,
        function: Callable,
        precision: str = "float32",
        products: dict | None = None,
        max_operations: int | None = None,
    ):
        self.function = function
        self.precision = precision
        self.max_operations = max_operations
        self.lock = threading.RLock()
        self.graphs = {}  # by shapes: a replay or None, and whether it is checked
        self.products = {} if products is None else products

    def check_weights(self) -> None:
        """Finds weights that were written to past the version counter."""
        for product in [*self.products.values()]:
            product.check_weight()

    def clear(self) -> None:
        """Drops everything that was captured."""
        with self.lock:
            self.graphs.clear()
            self.products.clear()

    def __call__(self, *arguments: Any) -> Any:
        tensors, structure = tree_flatten(arguments)
        if not all(isinstance(x, torch.Tensor) for x in tensors):
            return self.function(*arguments)
        # A captured `view` is right for one memory layout only.
        tensors = [x.contiguous() for x in tensors]
        key = (structure, *((tuple(x.shape), x.dtype, x.device) for x in tensors))
        device = tensors[0].device.type if tensors else "cpu"
        if torch.is_autocast_enabled(device):
            key += (torch.get_autocast_dtype(device),)
        replay, is_checked = self.graphs.get(key, (None, False))
        if is_checked:
            if replay is None:
                return self.function(*arguments)
            return replay(tensors, True)
        with self.lock:
            is_reduced = self.precision != "float32"
            copies = [x.clone() for x in tensors] if is_reduced else None
            result = self._prepare(key, tensors, structure)
            replay, _ = self.graphs[key]
            if copies is None or replay is None:
                return result
            # In this precision from the first call, so that all calls agree.
            return replay(copies, True)

    def _prepare(self, key, tensors, structure):
        """Calls the function to capture it or to check its replay."""
        replay, is_checked = self.graphs.get(key, (None, True))
        if key not in self.graphs:
            result, replay = _capture(
                self.function,
                tensors,
                structure,
                self.products,
                self.precision,
                self.max_operations,
            )
            if len(self.graphs) >= MAX_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            self.graphs[key] = replay, replay is None
            return result
        if replay is None or is_checked:  # another thread was faster
            return self.function(*tree_unflatten(tensors, structure))
        copies = [x.clone() for x in tensors]
        result = self.function(*tree_unflatten(tensors, structure))
        replay = replay if _agrees(replay, copies, result) else None
        self.graphs[key] = replay, True
        return result


class _ValueRead(RuntimeError):
    """A function reads values of tensors while it is captured."""


class _ValueReads(TorchFunctionMode):
    """Raises an exception where a function reads values of tensors.

    A check of values that may be skipped, as while a function is traced on
    another backend, catches it.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in VALUE_READS:
            raise _ValueRead(function)
        return function(*args, **(kwargs or {}))


class _GraphBuilder(TorchDispatchMode):
    """Writes every operation that runs while it is entered into a graph.

    Args:
        inputs: tensors, the arguments of the function.
        products: dict of `PrepackedProduct`, which it extends.
        precision: str, of `PrepackedProduct`.
    """

    def __init__(self, inputs, products, precision):
        super().__init__()
        self.graph, self.constants = torch.fx.Graph(), {}
        self.nodes = WeakIdKeyDictionary()  # by tensor, which may be freed
        self.weights = WeakIdKeyDictionary()  # `DerivedWeight` by tensor
        self.products, self.names, self.precision = products, {}, precision
        self.constant_storages, self.written_storages = set(), set()
        self.failed = False
        self.use_packed = self.graph.placeholder("use_packed")
        for i, tensor in enumerate(inputs):
            self.nodes[tensor] = self.graph.placeholder(f"input_{i}")

    def node(self, tensor):
        """Returns the node of a tensor: a constant if it comes from outside."""
        if tensor not in self.nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self.constant_storages.add(_storage(tensor))
            self.nodes[tensor] = self.graph.get_attr(name)
            self.weights[tensor] = DerivedWeight(tensor)
        return self.nodes[tensor]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # capture the parts of a composite operation
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = function(*args, **kwargs)
        if args and result is args[0] and not function._schema.is_mutable:
            return result
        node_args = tree_map_only(torch.Tensor, self.node, (args, kwargs))
        results = result if isinstance(result, (tuple, list)) else [result]
        self.failed |= (
            self._is_unrepeatable(function, args, kwargs)
            or not all(isinstance(x, (torch.Tensor, type(None))) for x in results)
            or self._writes_constant(function, args, kwargs)
        )
        if not self.failed:
            self._add(function, args, kwargs, node_args, result)
        return result

    def _add(self, function, args, kwargs, node_args, result):
        if isinstance(result, torch.Tensor):
            node = self._product(function, args, node_args[0])
            self.nodes[result] = node or self.graph.call_function(function, *node_args)
            if function in VIEW_OPERATIONS and args[0] in self.weights:
                weight = self.weights[args[0]]
                self.weights[result] = weight.derived(function, args[1:], kwargs)
            return
        node = self.graph.call_function(function, *node_args)
        results = result if isinstance(result, (tuple, list)) else [result]
        for i, tensor in enumerate(results):
            if tensor is not None:
                item = self.graph.call_function(operator.getitem, (node, i))
                self.nodes[tensor] = item

    def _product(self, function, args, node_args):
        """Returns the node of a product by a prepacked weight, or None."""
        if function not in MATRIX_PRODUCTS or args[1] not in self.weights:
            return None
        if args[0] in self.weights:  # no vectors: the factors of LoRA
            return None
        weight = self.weights[args[1]]
        is_written = _storage(args[1]) in self.written_storages
        if is_written or not PrepackedProduct.supports(weight, args[1], self.precision):
            return None
        new = PrepackedProduct(weight, self.precision)
        product = self.products.setdefault(weight.key(), new)
        name = self.names.setdefault(product, f"product_{len(self.names)}")
        return self.graph.call_module(name, (node_args[0], self.use_packed))

    def _is_unrepeatable(self, function, args, kwargs):
        """Whether another call may have another result for the same shapes."""
        if function is torch.ops.aten.index.Tensor:  # by a mask, not by indices
            return any(x is not None and x.dtype == torch.bool for x in args[1])
        tags = UNREPEATABLE & set(function.tags)
        if torch.Tag.nondeterministic_seeded in tags:
            return _argument(function, "dropout_p", args, kwargs) != 0.0
        if not tags:
            return False
        tensors = (x for x in tree_flatten(args)[0] if isinstance(x, torch.Tensor))
        return not all(x in self.weights for x in tensors)

    def _writes_constant(self, function, args, kwargs):
        """Whether it writes to a constant, which the next call would read."""
        schema = function._schema
        if not schema.is_mutable:
            return False
        targets = []
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                targets.append(args[i] if i < len(args) else kwargs.get(argument.name))
        tensors = (x for x in tree_flatten(targets)[0] if isinstance(x, torch.Tensor))
        storages = {*map(_storage, tensors)}
        self.written_storages |= storages
        return bool(storages & self.constant_storages)


def probe() -> None:
    """Raises an exception where the private API is not as expected."""
    with torch.inference_mode():
        x = torch.ones(2)
        result, replay = _capture(lambda x: (x + x.sum(),), [x], None, {}, "float32")
    if replay is None or not _agrees(replay, [x], result):
        raise AttributeError("a captured function does not repeat its result")


def _argument(function, name, args, kwargs):
    """Returns the value of an argument of an operation; None if it has none."""
    for i, argument in enumerate(function._schema.arguments):
        if argument.name == name:
            default = argument.default_value
            return args[i] if i < len(args) else kwargs.get(name, default)
    return None


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _capture(function, tensors, structure, products, precision, max_operations=None):
    """Calls a function; returns its result, and its replay or None."""
    # One tensor at two places may be two tensors in the next call.
    last = {id(x): i for i, x in enumerate(tensors)}
    tensors = [x if last[id(x)] == i else x.clone() for i, x in enumerate(tensors)]
    arguments = tensors if structure is None else tree_unflatten(tensors, structure)
    copies = [x.clone() for x in tensors]  # it may write before it reads
    builder = _GraphBuilder(tensors, products, precision)
    try:
        with _ValueReads(), builder:
            result = function(*arguments)
    except _ValueRead:
        arguments = copies if structure is None else tree_unflatten(copies, structure)
        return function(*arguments), None
    outputs, structure = tree_flatten(result)
    are_tensors = all(isinstance(x, torch.Tensor) for x in outputs)
    graph = builder.graph
    is_long = max_operations is not None and len(graph.nodes) > max_operations
    if builder.failed or is_long or not are_tensors:
        return result, None
    graph.output([builder.node(x) for x in outputs])
    graph.owning_module = root = torch.nn.Module()
    for name, tensor in builder.constants.items():
        root.register_buffer(name, tensor)
    for product, name in builder.names.items():
        root.add_module(name, product)
    graph.eliminate_dead_code()  # such as the transposition of prepacked weights
    # Not a GraphModule, since PyTorch keeps the source of each forever.
    code = graph.python_code(root_module="self")
    namespace = dict(code.globals)
    exec(code.src, namespace)
    forward = namespace["forward"]

    def replay(tensors, use_packed=False):
        return tree_unflatten(forward(root, use_packed, *tensors), structure)

    return result, replay


def _agrees(replay, tensors, expected):
    """Whether a replay has the result that the function had."""
    try:
        results, structure = tree_flatten(replay(tensors))
    except Exception:  # of whatever kind: the function itself still works
        return False
    expected, expected_structure = tree_flatten(expected)
    return structure == expected_structure and all(map(_is_close, results, expected))


def _is_close(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
