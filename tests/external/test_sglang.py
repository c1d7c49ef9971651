"""SGLang's source has every name that the plug-in uses, and its drafting loop drafts with a pool.

SGLang itself is not imported, as it needs a GPU: its loop is taken out of the source and runs with stubs on a CPU.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import json
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from drafterforge.cli import main
from drafterforge.interop.sglang import contract, plugin
from drafterforge.interop.vllm.contract import definitions
from drafterforge.interop.vllm.pool_folder import POOL as FOLDER_KEY
from drafterforge.interop.vllm.settings import PoolServing
from tests.external.conftest import Client
from tests.interop import sglang_engine
from tests.interop.sglang_engine import EagleDraftWorker
from tests.interop.sglang_server import SGLangServer, build_worker, stubbed_room
from tests.interop.test_vllm_speculator import Serving
from tests.interop.v2_server import NAMES, new_request

pytestmark = pytest.mark.external
SPECULATIVE = "srt/speculative"
POOL = ["general", "sql", "chat", "python"]
LOOP = ("draft", "draft_forward", "_draft_extend_for_prefill", "_draft_extend_for_decode")
HELPERS = {
    "eagle_utils": ("_eagle_prefill_tail_tokens", "per_step_draft_out_cache_loc"),
    "spec_utils": ("select_top_k_tokens", "_select_top_k_tokens_first", "_select_top_k_tokens_later"),
}


@pytest.fixture(scope="module")
def source() -> Path:
    """The folder of SGLang's package."""
    folder = next(Client("sglang").require().folder.glob("lib/python*/site-packages/sglang"), None)
    return folder or pytest.skip("SGLang is not in its environment; type scripts/clients_env sglang")


@pytest.fixture
def read_from(monkeypatch) -> Callable[[Path], list[str]]:
    """Names that the contract misses in SGLang's package in a folder."""

    def read(folder: Path) -> list[str]:
        monkeypatch.syspath_prepend(folder)
        definitions.cache_clear()
        missing = contract.missing_names()
        definitions.cache_clear()
        return missing

    return read


def test_sglang_has_all_names(source, read_from):
    missing = read_from(source.parent)
    assert missing == [], json.dumps(missing, indent=2)


@pytest.mark.parametrize(
    ("module", "name", "substitute", "missing"),
    [
        (
            "speculative.eagle_worker_v2",
            "def draft_forward(",
            "def forward(",
            "EagleDraftWorker.draft_forward(forward_batch)",
        ),
        (
            "speculative.eagle_worker_v2",
            " EagleDraftWorker(\n",
            " Other(\n",
            "EAGLEWorkerV2.__init__ without EagleDraftWorker",
        ),
        ("speculative.eagle_worker_v2", ".draft_forward(", ".forward(", "EagleDraftWorker.draft without draft_forward"),
        ("speculative.eagle_info", "topk_index", "tokens", "EagleDraftInput.topk_index"),
        ("managers.utils", "new_seq_lens", "lengths", "GenerationBatchResult.new_seq_lens"),
        ("models.registry", "EntryClass", "Entry", "import_model_classes without EntryClass"),
    ],
)
def test_a_name_that_is_gone_is_reported(source, read_from, tmp_path, module, name, substitute, missing):
    for path in ("sglang", *contract.USED, *contract.MENTIONED):
        file = Path(*path.split("."), "__init__.py") if path == "sglang" else Path(*path.split(".")).with_suffix(".py")
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((source.parent / file).read_text())
    assert read_from(tmp_path) == []
    path = tmp_path / "sglang" / "srt" / f"{module.replace('.', '/')}.py"
    text = path.read_text()
    assert name in text
    path.write_text(text.replace(name, substitute))
    lines = read_from(tmp_path)
    assert f"sglang.srt.{module}.{missing}" in lines, lines


def taken_out(path: Path, names: tuple[str, ...], class_name: str = "") -> list[ast.stmt]:
    """Functions of a module, or methods of one of its classes, without their decorators."""
    body = ast.parse(path.read_text()).body
    if class_name:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in names]
    assert {node.name for node in functions} == set(names)
    for function in functions:
        function.decorator_list = []
    return functions


def loop_of(source: Path, is_cuda: bool) -> type:
    """A draft worker with the text of SGLang's loop, as it runs on a CPU, or as on a GPU."""
    nodes = [
        node for module, names in HELPERS.items() for node in taken_out(source / SPECULATIVE / f"{module}.py", names)
    ]
    nodes += taken_out(source / SPECULATIVE / "eagle_worker_v2.py", LOOP, "EagleDraftWorker")
    tree = ast.Module(nodes, [])
    space: dict[str, Any] = {
        **vars(sglang_engine),
        "contextlib": contextlib,
        "_is_cuda": is_cuda,
        "_is_hip": False,
        "fast_topk": lambda values, topk, dim: torch.max(values, dim=dim, keepdim=True),
        "renorm_draft_probs": lambda logits, info, use_rejection_sampling: logits.softmax(dim=-1),
        "get_spec": lambda: sglang_engine.SETTINGS.spec,
        "CaptureHiddenMode": SimpleNamespace(NULL=0, LAST=1),
        "IndexTopKShareState": SimpleNamespace(mtp_iteration=lambda *_, **__: contextlib.nullcontext()),
        "ForwardContext": SimpleNamespace,
        "forward_context": lambda *_, **__: contextlib.nullcontext(),
        "build_eagle_verify_input": lambda batch, info, parents, scores, tokens, *_, **__: SimpleNamespace(
            draft_token=tokens
        ),
        "draft_topk1_postprocess": best_token,
        **{f"maybe_detect_{name}": lambda *_: None for name in ("nan", "inf", "oob")},
    }
    exec(compile(tree, "eagle_worker_v2", "exec", flags=__future__.annotations.compiler_flag), space)

    class SourceWorker(EagleDraftWorker):
        """Runs SGLang's loop."""

        index_share_for_mtp_iteration = seed_dsa_topk_from_draft_extend = False
        plan_stream, plan_stream_ctx = None, contextlib.nullcontext()
        tree_mask_mode = None

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            steps = self.speculative_num_steps
            plan = SimpleNamespace(init_forward_metadata=lambda forward_batch: None, attn_backends=[None] * steps)
            self.draft_attn_backend = plan
            self._topk1_parents_prealloc = self._topk1_score_indices_prealloc = torch.zeros(8, steps)

    for name in LOOP:
        setattr(SourceWorker, name, space[name])
    return SourceWorker


def best_token(logits: Tensor, positions: Tensor, tokens: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """What the kernel of that name does after a decode pass: the best tokens, also into a column of the chains."""
    best = logits.argmax(dim=-1, keepdim=True)
    positions.add_(1)
    tokens[:, column : column + 1] = best
    return torch.ones_like(best, dtype=torch.float32), best


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A pool of shipped drafters."""
    runs = tmp_path_factory.mktemp("pool")
    main(["export", "format=vllm-pool", "bundle=served", f"pool.drafters=[{','.join(POOL)}]", f"runs_dir={runs}"])
    return next(runs.glob("*/exports/served-vllm-pool"))


def test_the_hooks_of_sglang_replace_the_worker_of_a_pool(source, monkeypatch, tmp_path):
    algorithm = sglang_engine.SpeculativeAlgorithm
    monkeypatch.setattr(algorithm, "create_worker", algorithm.create_worker)  # restored at the end
    monkeypatch.setattr(plugin, "why_not", lambda: "")
    with stubbed_room(monkeypatch) as room:
        spec = spec_from_file_location("hook_registry", source / "srt" / "plugins" / "hook_registry.py")
        hooks = module_from_spec(spec)
        spec.loader.exec_module(hooks)
        monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", hooks)
        plugin.register()
        hooks.HookRegistry.apply_hooks()
        sglang_engine.reset_settings(str(tmp_path))
        assert algorithm.EAGLE3.create_worker(None) is sglang_engine.EAGLEWorkerV2
        (tmp_path / "config.json").write_text(json.dumps({FOLDER_KEY: POOL}))
        assert algorithm.EAGLE3.create_worker(None) is room.worker.PoolWorker


@pytest.mark.parametrize("is_cuda", [False, True])
def test_the_loop_of_sglang_drafts_judges_and_chooses_with_a_pool(source, monkeypatch, real, folder, is_cuda):
    loop = loop_of(source, is_cuda)
    with stubbed_room(monkeypatch, loop):
        monkeypatch.setattr(PoolServing, "open", staticmethod(lambda *_: Serving(NAMES, PoolServing.allowed)))
        worker, pool = build_worker(folder, real.backbone.embedding, len(POOL))
        assert isinstance(worker.draft_worker, loop)
        server = SGLangServer(worker, pool, worker.draft_worker.model.drafters.members)
        first, second, third = (
            new_request(name, length, real.config.hidden_size) for name, length in (("a", 9), ("b", 4), ("c", 14))
        )
        for request in (first, second):
            server.add(request)
        choices = [server.prefill([first, second])]
        choices += [server.decode([first, second]) for _ in range(3)]
        server.add(third)
        choices += [server.prefill([third], chunk=8) for _ in range(2)]
        choices += [server.decode([second, third, first]) for _ in range(4)]
        server.remove(second, is_finished=True)
        choices += [server.decode([first, third]) for _ in range(2)]
    assert len({arm for row in choices for arm in row}) > 1
