"""Rehearses a GPU without one: code runs on `meta` tensors, and every operation is checked as a GPU would.

`meta` itself refuses to be read, so a rehearsal gives it the values that the same code read in a real run on the CPU:

    with rehearse() as real:
        step("cpu")
    with rehearse(values=real) as rehearsal:
        step("meta")
    same_shapes(real, rehearsal)
    assert rehearsal.reads == {}
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drafterforge.kernels import gpu

ROOT = Path(__file__).parents[2]
META = torch.device("meta")
ENGINE = torch.autograd._engine_run_backward
# Operations whose result, or its shape, the host reads from the device.
READS = {
    "aten::_local_scalar_dense": "item",
    "aten::equal": "equal",
    "aten::nonzero": "nonzero",
    "aten::masked_select": "masked_select",
    "aten::bincount": "bincount",
    "aten::_unique2": "unique",
    "aten::unique_dim": "unique",
    "aten::unique_consecutive": "unique",
}
# Elementwise operations that torch does not tag as such; CUDA takes a 0-dim CPU tensor in them.
ELEMENTWISE = {f"aten::{name}" for name in ("where", "masked_fill", "masked_fill_", "fill_", "fill", "lerp", "lerp_")}
HOST_FUNCTIONS = (Tensor.cpu, Tensor.to, Tensor.tolist)  # no operations on a CPU, so their values are recorded here
UPLOADS = (torch.tensor, torch.as_tensor)  # from Python numbers


class DeviceMixError(AssertionError):
    """An operation has tensors on the GPU and on the host."""


class CaptureError(AssertionError):
    """A captured region reads from the device or copies to it."""


class UnknownValueError(AssertionError):
    """The host reads a value that no real run recorded."""


class SourceLine(NamedTuple):
    """The innermost line of this repository that ran an operation."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


class Shape(NamedTuple):
    """Shape and dtype of a tensor."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


class Operation(NamedTuple):
    """An operation and the tensors that it returned."""

    name: str
    outputs: tuple[Shape, ...]


@dataclass
class Log:
    """What a run did."""

    operations: list[Operation] = field(default_factory=list)
    outputs: dict[str, list[tuple[Shape, ...]]] = field(default_factory=lambda: defaultdict(list))  # by `mark`
    reads: Counter[str] = field(default_factory=Counter)  # "module.function: kind" of reads from `meta`
    copies: Counter[str] = field(default_factory=Counter)  # the same of copies from the host to `meta`
    # what is read on the CPU, by line and kind, in order
    values: dict[tuple[SourceLine, str], deque[Any]] = field(default_factory=lambda: defaultdict(deque))

    def mark(self, name: str, value: Any) -> None:
        """Record the shapes of a value, to be compared by `same_shapes`."""
        self.outputs[name].append(tuple(shapes_of(value)))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from tensors_of(getattr(value, part.name))


def shapes_of(value: Any) -> Iterator[Shape]:
    return (Shape(tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(value))


def source_line() -> SourceLine:
    """Where the running operation was asked for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__ and _is_ours(code.co_filename):
            return SourceLine(str(Path(code.co_filename).relative_to(ROOT)), frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return SourceLine("", 0, "")


@cache
def _is_ours(path: str) -> bool:
    return path.startswith(f"{ROOT}/") and "site-packages" not in path


@cache
def _is_composite(operation: torch._ops.OpOverload) -> bool:
    """Whether torch only composes it of other operations; inference mode dispatches such ones undivided."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd")


def _is_host(tensor: Tensor) -> bool:
    return not tensor.is_meta


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class _Operations(TorchDispatchMode):
    """Checks what reaches the device."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        super().__init__()
        self.rehearsal = rehearsal

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self.rehearsal.operation(func, args, kwargs)


class _Calls(TorchFunctionMode):
    """Checks what never becomes an operation: Python numbers and indices on their way to the device."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        super().__init__()
        self.rehearsal = rehearsal

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with this mode on: torch turns it off inside `backward`, which calls code of ours."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].is_meta:
            self.rehearsal.index(func, *args)
        result = func(*args, **kwargs)
        if func in HOST_FUNCTIONS:
            value = args[0] if func is Tensor.tolist else result
            if not args[0].is_meta or (value is result and value.is_meta):  # else `_read` gave the value
                self.rehearsal.record("copy", value)
        elif func in UPLOADS and result.is_meta and not isinstance(args[-1], Tensor):
            self.rehearsal.upload("numbers")
        return result


class Rehearsal:
    """The checks of one run, which fill its `Log`."""

    def __init__(self, values: Log | Sequence[Any] | None) -> None:
        self.log = Log()
        self.recorded = {key: deque(column) for key, column in values.values.items()} if isinstance(values, Log) else {}
        self.queue = deque() if values is None or isinstance(values, Log) else deque(values)

    def operation(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Check and run an operation; reads from the device get their values."""
        name, tensors = func._schema.name, list(tensors_of((args, kwargs)))
        on_device = [tensor for tensor in tensors if tensor.is_meta]
        if on_device:
            self._check_devices(func, name, args, tensors)
        self._check_generator(func, kwargs, on_device)
        kind = self._read_kind(name, args, kwargs)
        if kind and on_device:
            return self._read(kind, func, args)
        if self._uploads(name, tensors, kwargs):
            self.upload("copy")
        result = func(*args, **kwargs)
        if kind and name != "aten::_to_copy":  # which `_Calls` records
            self.record(kind, result)
        self.log.operations.append(Operation(str(func), tuple(shapes_of(result))))
        return result

    def index(self, func: Any, tensor: Tensor, index: Any, *values: Any) -> None:
        """Check the index of a tensor on the device, which torch may move there silently."""
        parts = list(tensors_of([index]))
        hosts = [part for part in parts if _is_host(part) and (part.dim() or _is_mask(part))]
        if hosts:
            raise DeviceMixError(f"{source_line()}: an index on the host, {_describe(hosts)}, of a tensor on the GPU")
        if any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,))):
            raise DeviceMixError(
                f"{source_line()}: a list, which torch keeps on the host, as the index of a tensor on the GPU"
            )
        if values and not isinstance(values[0], Tensor) and any(part.dim() and not _is_mask(part) for part in parts):
            self.upload("number")

    def upload(self, kind: str) -> None:
        """Count a copy from the host to the device."""
        where = source_line()
        if gpu.is_capturing():
            raise CaptureError(f"{where}: a captured region copies from the host ({kind})")
        self.log.copies[f"{_label(where)}: {kind}"] += 1

    def record(self, kind: str, value: Any) -> None:
        """Keep a value that is read on the CPU; in a rehearsal the same call drops it, so reads keep their order."""
        if isinstance(value, Tensor):
            value = value.detach().clone() if _is_host(value) else None
        self.log.values[source_line(), kind].append(value)
        if column := self.recorded.get((source_line(), kind)):
            column.popleft()

    def _check_devices(self, func: Any, name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        hosts = [tensor for tensor in tensors if _is_host(tensor)]
        if not hosts or name in ("aten::copy_", "aten::_to_copy"):
            return
        if name in ("aten::index_put_", "aten::index_put"):  # the value may be one number
            elementwise = not any(map(_is_host, tensors_of(args[:2])))
        else:
            elementwise = torch.Tag.pointwise in func.tags or name in ELEMENTWISE
        alias = func._schema.arguments[0].alias_info
        writes_host = alias is not None and alias.is_write and _is_host(tensors[0])
        if not elementwise or writes_host or any(tensor.dim() for tensor in hosts):
            raise DeviceMixError(f"{source_line()}: {func} mixes the GPU with {_describe(hosts)} on the host")

    def _check_generator(self, func: Any, kwargs: Mapping[str, Any], on_device: Sequence[Tensor]) -> None:
        generator, device = kwargs.get("generator"), kwargs.get("device")
        draws = on_device or (device is not None and torch.device(device) == META)
        if draws and generator is not None and generator.device.type == "cpu":
            raise DeviceMixError(f"{source_line()}: {func} draws on the GPU with a generator of the host")

    def _uploads(self, name: str, tensors: Sequence[Tensor], kwargs: Mapping[str, Any]) -> bool:
        """Whether an operation copies from the host to the device."""
        if name == "aten::_to_copy":
            device = kwargs.get("device")
            return device is not None and torch.device(device) == META and _is_host(tensors[0])
        copies = name in ("aten::copy_", "aten::index_put_", "aten::index_put")
        return copies and tensors[0].is_meta and any(map(_is_host, tensors))

    def _read_kind(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """How an operation reads from the device; empty if it does not."""
        if name == "aten::_to_copy":
            device = kwargs.get("device")
            return "copy" if device is not None and torch.device(device).type == "cpu" else ""
        if name == "aten::copy_":
            return "copy" if _is_host(args[0]) else ""
        if name == "aten::repeat_interleave":
            return "repeat_interleave" if kwargs.get("output_size") is None else ""
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            by_mask = any(map(_is_mask, args[1]))
            fills = len(args) > 2 and args[2].numel() == 1 and len(args[1]) == 1  # as masked_fill does
            return "mask" if by_mask and not fills else ""
        return READS.get(name, "")

    def _read(self, kind: str, func: Any, args: Sequence[Any]) -> Any:
        where = source_line()
        if gpu.is_capturing():
            raise CaptureError(f"{where}: a captured region reads from the device ({kind})")
        self.log.reads[f"{_label(where)}: {kind}"] += 1
        if "index_put" in func._schema.name:  # its shape is that of its argument
            return args[0] if func._schema.name.endswith("_") else torch.empty_like(args[0])
        column = self.queue or self.recorded.get((where, kind))
        if not column:
            raise UnknownValueError(f"{where}: the host reads from the device ({kind}), and no value was recorded")
        value = column.popleft()
        if func._schema.name == "aten::copy_":
            return args[0].copy_(value)
        if kind == "copy":
            return value.clone()
        if kind in ("item", "equal"):
            return value
        shapes = [torch.empty(shape.sizes, dtype=shape.dtype, device=META) for shape in shapes_of([value])]
        return tuple(shapes) if len(func._schema.returns) > 1 else shapes[0]


def _describe(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)


def _label(where: SourceLine) -> str:
    """module.function, without the package: `training.ppo_module.PPOModule.collect`."""
    module = where.path.removesuffix(".py").removeprefix("drafterforge/").replace("/", ".")
    return f"{module}.{re.sub(r'[.]<[a-z]+>', '', where.function)}"


def _watched(log: Log, owner: Any, name: str) -> Callable[..., Any]:
    function = getattr(owner, name)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        log.mark(name, result)
        return result

    return call


def _with_rehearsed(devices: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*{*devices(), "meta", "cpu"}]


@contextmanager
def rehearse(values: Log | Sequence[Any] | None = None, watched: Sequence[tuple[Any, str]] = ()) -> Iterator[Log]:
    """Check every operation inside; yields the log, also of a real run on the CPU.

    values: what the host reads from `meta`: the log of a real run of the same code, or values in their order.  watched:
    functions, as owner and name, whose outputs are logged.  Optimisers take the path of a GPU, also on the CPU, so that
    both runs read the same values.
    """
    rehearsal = Rehearsal(values)
    optimisers = map(import_module, ("torch.optim.optimizer", "torch.utils._foreach_utils"))
    names = "_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"
    with ExitStack() as stack:
        for module in optimisers:
            for name in names:
                stack.enter_context(mock.patch.object(module, name, _with_rehearsed(getattr(module, name))))
        for owner, name in watched:
            stack.enter_context(mock.patch.object(owner, name, _watched(rehearsal.log, owner, name)))
        calls = stack.enter_context(_Calls(rehearsal))
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", calls.during(ENGINE)))
        stack.enter_context(_Operations(rehearsal))
        yield rehearsal.log


@contextmanager
def captured() -> Iterator[None]:
    """A region that a CUDA graph would capture: reading from the device or copying to it raises."""
    with gpu.capture(META):
        yield


def same_shapes(real: Log, rehearsal: Log) -> None:
    """AssertionError unless the marked values of both runs have the same shapes and dtypes, call by call."""
    assert real.outputs.keys() == rehearsal.outputs.keys(), (sorted(real.outputs), sorted(rehearsal.outputs))
    for name, calls in real.outputs.items():
        rehearsed = rehearsal.outputs[name]
        assert len(calls) == len(rehearsed), f"{name}: {len(calls)} calls on the CPU, {len(rehearsed)} on meta"
        for number, (expected, shapes) in enumerate(zip(calls, rehearsed, strict=True)):
            assert expected == shapes, f"{name}, call {number}: {expected} on the CPU, {shapes} on meta"
