"""The kernels of native.c, for few rows in float32 on a CPU; compiled once on the machine that runs them.

`library()` is None without a C compiler, or with DRAFTERFORGE_NATIVE=off in the environment;
`dispatch` then chooses torch, whose results tests compare with these.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from drafterforge.errors import ConfigError
from drafterforge.kernels.processor import processor_features

SOURCE = Path(__file__).with_name("native.c")
INCLUDED = tuple(SOURCE.with_name(name) for name in ("threads.h", "matrix.h", "layers.h", "retrieval.h"))
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-pthread", "-shared", "-fPIC")
COMPILER_SECONDS = 120
MOST_QUERIES = 256  # of a sequence, that `attention` gets at once
SIGNATURES: dict[str, tuple] = {
    "df_panel": (),
    "df_has_pairs": (),
    "df_has_bytes": (),
    "df_has_matrix": (),
    "df_pack_half": (c_void_p, c_void_p, c_long, c_long),
    "df_pack_full": (c_void_p, c_void_p, c_long, c_long),
    "df_project": (*[c_void_p] * 4, c_long, c_int),
    "df_top": (c_void_p, *[c_long] * 3, c_void_p, c_void_p, c_int),
    "df_argmax": (c_void_p, c_long, c_long, c_void_p, c_int),
    "df_walk": (*[c_void_p] * 3, *[c_long] * 3, c_void_p, c_void_p),
    "df_pack_walks": (*[c_void_p] * 4, *[c_long] * 3, c_void_p),
    "df_mlp": (*[c_void_p] * 3, c_float, *[c_void_p] * 3, c_long, c_long, c_void_p, c_void_p, c_long, c_int),
    "df_level": (
        *(c_void_p, *[c_long] * 4, *[c_void_p] * 4, c_long, c_long),
        *([c_void_p] * 3),
        *(c_long, *[c_void_p] * 6, c_int),
    ),
    "df_reads": (c_void_p, c_void_p, *[c_long] * 4, c_void_p),
    "df_ancestors": (c_void_p, c_long, c_long, c_void_p),
    "df_mask": (c_void_p, c_void_p, *[c_long] * 4, c_void_p),
    "df_cut": (*[c_void_p] * 4, *[c_long] * 3, c_void_p, c_void_p, c_int, c_long, *[c_void_p] * 4),
    "df_children": (c_void_p, c_long, c_long, c_float, c_void_p),
    "df_worth": (c_void_p, c_long, c_long, c_long, *[c_void_p] * 3, c_long, c_void_p, c_void_p),
    "df_rms_norm": (c_void_p, c_long, c_void_p, c_void_p, c_long, c_long, c_float),
    "df_swiglu": (c_void_p, c_void_p, c_long, c_long, c_int),
    "df_rotate_and_store": (*[c_void_p] * 3, *[c_long] * 5, c_void_p, c_void_p, c_long, c_long, c_void_p, c_long),
    "df_move": (c_void_p, *[c_long] * 7, *[c_void_p] * 3, c_long),
    "df_attention": (
        *(c_void_p, c_long, c_void_p, c_void_p, c_long, c_long, c_void_p, c_long, c_void_p),
        *([c_long] * 6),
        *(c_float, c_int),
    ),
    "df_decoder": (
        *(c_void_p, c_long, c_void_p, c_void_p, *[c_long] * 3, c_float, c_float),
        *(c_void_p, c_long, c_void_p, c_int),
    ),
    "df_draft_layer": (
        *(*[c_void_p] * 5, c_long, c_void_p, *[c_long] * 4, c_float, c_float),
        *(c_void_p, c_void_p, c_int),
    ),
    "df_draft": (*[c_void_p] * 3, *[c_long] * 3, c_float, c_float, c_void_p, c_int),
    "df_look_up": (
        *(c_void_p, c_long, c_void_p, c_long, c_void_p, c_void_p, c_long),
        *(*[c_long] * 3, *[c_double] * 3, c_long, c_void_p, c_void_p),
    ),
    "df_likeliest": (
        *(c_void_p, c_void_p, c_long, c_long, c_double, c_double, c_long, c_long, c_double),
        *(*[c_void_p] * 3, c_long, c_double, c_void_p, c_long, *[c_void_p] * 4),
    ),
}

# functions that return a number: 1 for failure, except for the first four and those that say how many they wrote
RETURN = (
    "df_panel",
    "df_has_pairs",
    "df_has_bytes",
    "df_has_matrix",
    "df_ancestors",
    "df_attention",
    "df_cut",
    "df_decoder",
    "df_draft",
    "df_draft_layer",
    "df_likeliest",
    "df_look_up",
    "df_move",
    "df_project",
    "df_reads",
    "df_rotate_and_store",
    "df_walk",
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None; `why_not` says why."""
    outcome = _load()
    return outcome if isinstance(outcome, ctypes.CDLL) else None


@functools.cache
def why_not() -> str | None:
    """Why there are no compiled kernels, or None if there are."""
    outcome = _load()
    return outcome if isinstance(outcome, str) else None


@functools.cache
def _load() -> ctypes.CDLL | str:
    setting = os.environ.get("DRAFTERFORGE_NATIVE", "auto")
    if setting not in ("auto", "off"):
        raise ConfigError(f"DRAFTERFORGE_NATIVE={setting!r} in the environment; wanted auto or off")
    if setting == "off":
        return "DRAFTERFORGE_NATIVE=off"
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler (cc, gcc or clang) on the PATH"
    try:
        path = _compiled(compiler)
        loaded = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            detail = (error.stderr.strip() or f"exit status {error.returncode}").splitlines()[0]
        return f"{compiler} did not compile {SOURCE.name} ({detail[:200]})"
    for name, arguments in SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_int if name in RETURN else None
    return loaded


def _compiled(compiler: str) -> Path:
    """The shared library for this source, compiler and processor; compiled if it is not cached."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=COMPILER_SECONDS)
    texts = [path.read_text() for path in (SOURCE, *INCLUDED)]
    parts = (*texts, version.stdout, " ".join(FLAGS), processor_features())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    root = cache_dir()
    path = root / f"{digest}.so"
    if not path.is_file():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as work:
            built = Path(work) / path.name
            command = [compiler, *FLAGS, str(SOURCE), "-o", str(built), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILER_SECONDS)
            built.replace(path)
    return path


def version() -> str:
    """What the kernels were compiled from and for; empty without them."""
    return "" if library() is None else Path(library()._name).stem


def cache_dir() -> Path:
    """The folder of compiled kernels: drafterforge/native in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drafterforge" / "native"


def require(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Refuse a tensor that a kernel, which gets only an address, would read past or misread."""
    if x.shape != shape or x.dtype != dtype or x.device.type != "cpu" or not x.is_contiguous():
        layout = f"{'' if x.is_contiguous() else 'not '}contiguous"
        raise ValueError(
            f"wanted {dtype} {list(shape)} on cpu, contiguous; got {x.dtype} {list(x.shape)} on {x.device}, {layout}"
        )


def address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers are; 0: there is none."""
    return 0 if tensor is None else tensor.data_ptr()


def multiplies_bfloat16() -> bool:
    """Whether `PackedLinear` can multiply in bfloat16, which needs AVX512-BF16."""
    return library() is not None and bool(library().df_has_pairs())


def multiplies_bytes() -> bool:
    """Whether `PackedLinear` can multiply numbers of 8 bits, which needs AVX512-VNNI."""
    return library() is not None and bool(library().df_has_bytes())


@functools.cache
def multiplies_matrices() -> bool:
    """Whether `PackedLinear` can multiply by a matrix unit, which needs AMX, and permission from Linux."""
    return library() is not None and bool(library().df_has_matrix())


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of the best `count` of contiguous logits [N, W], each [N, count], descending.

    Equal logits are ordered by id.
    """
    rows, width = logits.shape
    require(logits, (rows, width))
    if not 0 < count <= width:
        raise ValueError(f"wanted 1 to {width} of a row, got {count}")
    values, places = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.long)
    threads = torch.get_num_threads()
    library().df_top(logits.data_ptr(), rows, width, count, values.data_ptr(), places.data_ptr(), threads)
    return values, places


def argmax(x: Tensor) -> Tensor:
    """Indices of the largest numbers [N] of contiguous x [N, W]; the first of equal ones."""
    rows, width = x.shape
    require(x, (rows, width))
    if not width:
        raise ValueError("wanted at least one number a row, got none")
    places = torch.empty(rows, dtype=torch.long)
    library().df_argmax(x.data_ptr(), rows, width, places.data_ptr(), torch.get_num_threads())
    return places


class PackedMLP:
    """An MLP with tanh between its layers, on normalised and clipped inputs."""

    def __init__(self, mean: Tensor, scale: Tensor, farthest: float, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """mean, scale: [in].  layers: weights [in, out] and biases [out], float32."""
        self.tensors = [
            mean.contiguous(),
            scale.contiguous(),
            *(part.contiguous() for layer in layers for part in layer),
        ]
        self.widths = [len(mean), *(bias.numel() for _, bias in layers)]
        for (weight, bias), before in zip(layers, self.widths[:-1], strict=True):
            require(weight.contiguous(), (before, bias.numel()))
            require(bias.contiguous(), (bias.numel(),))
        for part in self.tensors[:2]:
            require(part, (self.widths[0],))
        count, self.widest = len(layers), max(self.widths)
        self.farthest, self.count = farthest, count
        self.weights = (c_void_p * count)(*(part.data_ptr() for part in self.tensors[2::2]))
        self.biases = (c_void_p * count)(*(part.data_ptr() for part in self.tensors[3::2]))
        self.sizes = (c_long * (count + 1))(*self.widths)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, out] of contiguous x [N, in]."""
        rows = x.shape[0]
        require(x, (rows, self.widths[0]))
        out, scratch = torch.empty(rows, self.widths[-1]), torch.empty(rows, 2 * self.widest)
        library().df_mlp(
            x.data_ptr(),
            self.tensors[0].data_ptr(),
            self.tensors[1].data_ptr(),
            self.farthest,
            ctypes.addressof(self.weights),
            ctypes.addressof(self.biases),
            ctypes.addressof(self.sizes),
            self.count,
            self.widest,
            scratch.data_ptr(),
            out.data_ptr(),
            rows,
            torch.get_num_threads(),
        )
        return out


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """As `norm.rms_norm`, for x [N, D] with contiguous rows and a gain [D]."""
    rows, width = x.shape
    if gain.shape[0] != width:
        raise ValueError(f"wanted a gain of {width} numbers, got {gain.shape[0]}")
    out = torch.empty(rows, width)
    library().df_rms_norm(x.data_ptr(), x.stride(0), gain.data_ptr(), out.data_ptr(), rows, width, eps)
    return out


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of contiguous rows gate|up, [N, 2F] to [N, F]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width)
    library().df_swiglu(gate_up.data_ptr(), out.data_ptr(), rows, width, torch.get_num_threads())
    return out


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, used: int) -> Tensor:
    """As `kernels.attention.grouped_attention` with a mask, or of one query without; [B, T, Hq, D], contiguous.

    q: [B, T, Hq, D], a query's heads side by side.  k, v: [B, Hk, S, D] of which the first `used` slots are read.
    mask: [B or 1, T, used], contiguous.
    """
    batch, length, heads, width = q.shape
    key_heads = k.shape[1]
    if mask is not None:
        require(mask, (1 if mask.shape[0] == 1 else batch, length, used))
    if k.dtype != torch.float32 or v.dtype != torch.float32 or k.shape[0] != batch or not 0 < used <= k.shape[2]:
        raise ValueError(
            f"wanted torch.float32 keys of {batch} sequences, 1 to {k.shape[2]} slots; "
            f"got {k.dtype}, {k.shape[0]} sequences, {used} slots"
        )
    out = torch.empty(batch, length, heads, width)
    failed = library().df_attention(
        q.data_ptr(),
        q.stride(1),
        k.data_ptr(),
        v.data_ptr(),
        k.stride(0),
        k.stride(1) // width,
        0 if mask is None else mask.data_ptr(),
        0 if mask is None or mask.shape[0] == 1 else mask.stride(0),
        out.data_ptr(),
        batch,
        length,
        key_heads,
        heads // key_heads,
        width,
        used,
        width**-0.5,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"attention over {used} keys")
    return out


def rotate_and_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, length: int, queries: int, cache: Tensor, slots: Tensor | None, start: int
) -> None:
    """Rotate queries and keys of qkv [N, heads, D] in place; store keys and values in one layer of a cache.

    cos, sin: [N, D/2], contiguous.  cache: [2, B, Hk, S, D].  slots: [N], where each row goes; None: token t of every
    sequence goes to slot start + t.
    """
    rows, heads, width = qkv.shape
    key_heads = cache.shape[2]
    if (rows, heads) != (cache.shape[1] * length, queries + 2 * key_heads) or (
        slots is not None and len(slots) != rows
    ):
        raise ValueError(f"wanted {length} tokens for each of {cache.shape[1]} sequences, got {rows}, or other heads")
    outside = library().df_rotate_and_store(
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        rows,
        length,
        queries,
        key_heads,
        width,
        cache.data_ptr(),
        cache.data_ptr() + cache.stride(0) * cache.element_size(),
        cache.stride(1),
        cache.shape[3],
        0 if slots is None else slots.data_ptr(),
        start,
    )
    if outside:
        raise IndexError(f"a slot lies outside the cache's {cache.shape[3]}")


def move_slots(cache: Tensor, rows: Sequence[int], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copy slot sources[i] of row rows[i] to destinations[i], one after the other; cache: [L, 2, B, Hk, S, D]."""
    layers, _, batch, heads, slots, width = cache.shape
    strides, size, count = cache.stride(), cache.element_size(), len(rows)
    if strides[0] != 2 * strides[1] or strides[3:] != (slots * width, width, 1) or cache.device.type != "cpu":
        raise ValueError(f"wanted a cache on cpu with its slots side by side, got strides {list(strides)}")
    if not len(sources) == len(destinations) == count:
        raise ValueError(f"wanted {count} sources and destinations, got {len(sources)} and {len(destinations)}")
    planes, places = (2 * layers, strides[1] * size, batch, strides[2] * size, heads, slots), c_int64 * count
    moved = places(*rows), places(*sources), places(*destinations)
    if library().df_move(cache.data_ptr(), *planes, width * size, *moved, count):
        raise IndexError(f"a row is none of the cache's {batch}, or a slot none of its {slots}")
