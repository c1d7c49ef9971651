"""The methods of `suite=vllm`: servers without a drafter, with one drafter, and with a pool."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from drafterforge.artifacts.atomic import file_sha256
from drafterforge.config.commands import EvaluateConfig
from drafterforge.config.evaluation import AUTOREGRESSIVE, GENERALIST
from drafterforge.config.names import POOL
from drafterforge.errors import ConfigError
from drafterforge.evaluation.methods import Method
from drafterforge.evaluation.served_target import ServedTarget
from drafterforge.evaluation.vllm_engine import VllmEngine
from drafterforge.evaluation.vllm_exports import ServedDrafters, find_drafters
from drafterforge.evaluation.vllm_server import HOST, VllmServer, option, server_environment
from drafterforge.interop.vllm.pool_folder import ARCHITECTURE
from drafterforge.interop.vllm.settings import KEY, ServingSettings

PLUG_IN = 'the pool needs our plug-in beside vLLM: type pip install ".[vllm]" in the repository there'


class ServedMethods:
    """Builds methods by name; each has a server that is not started yet."""

    def __init__(self, cfg: EvaluateConfig, target: ServedTarget, command: Path, logs: Path) -> None:
        """command: the `vllm` program.  logs: folder of the servers' logs."""
        self.cfg, self.target, self.command, self.logs = cfg, target, command, logs
        self.environment = server_environment(command, cfg.suite.server_env)
        self.drafters: ServedDrafters | None = None
        self.identities: dict[str, str] = {}  # hash of each method's draft model

    def build(self) -> list[Method]:
        """The methods of the suite after decoding without a drafter."""
        names = [name for name in self.cfg.suite.methods if name != AUTOREGRESSIVE]
        if names:
            self.drafters = find_drafters(self.cfg, self.target, POOL in names)
            names = [self.drafters.names[0] if name == GENERALIST else name for name in names]
        return [
            self.method(name, self.cfg.suite.ports + number)
            for number, name in enumerate(dict.fromkeys([AUTOREGRESSIVE, *names]))
        ]

    def method(self, name: str, port: int) -> Method:
        """A method by the name of a drafter, `pool` or `autoregressive`."""
        if name == AUTOREGRESSIVE:
            return Method(name, self.engine(name, port, None))
        if name == POOL:
            pool = self.drafters.pool()
            selector = self.selector(pool.record.defaults.selector_name)
            label = f"{selector} over the pool"
            self.identities[label] = pool.record.digest
            names = [*pool.stacked, *pool.lookups]
            return Method(label, self.engine(label, port, pool.folder), selector, "static", names)
        if name not in self.drafters.names:
            source = self.drafters.bundle or self.cfg.runs_dir
            raise ConfigError(
                f"suite.methods has {name!r}, but {source} has no such EAGLE-3 drafter; "
                f"it has {', '.join(self.drafters.names)}"
            )
        label, folder = f"{name} alone", self.drafters.drafter(name)
        self.identities[label] = file_sha256(folder / "model.safetensors")
        return Method(label, self.engine(label, port, folder), "static", "static", [name])

    def selector(self, default: str) -> str:
        """The selector of the pool: that of `--additional-config`, else the bundle's."""
        try:
            config = json.loads(option(self.cfg.suite.server_args, "--additional-config") or "{}")
            settings = ServingSettings.of(config.get(KEY, {}))
        except (ValueError, AttributeError):
            raise ConfigError("suite.server_args has an --additional-config that is no JSON object") from None
        return "static" if settings.drafter else settings.selector or default

    def engine(self, name: str, port: int, draft_model: Path | None) -> VllmEngine:
        """An engine on a server with this draft model."""
        words = self.serve_words(draft_model)
        extra = ["--host", HOST, "--port", str(port)]
        if draft_model is not None:
            extra += ["--per-request-spec-decode-metrics", "detailed"]
        server = VllmServer(
            name,
            [str(self.command), *words, *extra],
            port,
            self.logs / f"vllm-{name.replace(' ', '-')}.log",
            self.environment,
            {ARCHITECTURE: PLUG_IN},
        )
        return VllmEngine(server, self.target, draft_model is not None)

    def serve_words(self, draft_model: Path | None) -> list[str]:
        """The words after `vllm` that serve the target with a draft model."""
        suite, target = self.cfg.suite, self.target
        words = ["serve", target.facts.model]
        if option(suite.server_args, "--dtype") is None:
            words += ["--dtype", target.dtype_name]
        words += suite.server_args
        if draft_model is not None:
            count = suite.num_speculative_tokens
            drafting = {"method": "eagle3", "model": str(draft_model), "num_speculative_tokens": count}
            words += ["--speculative-config", json.dumps(drafting)]
        return words


def serve_commands(methods: Sequence[Method]) -> dict[str, str]:
    """The `vllm serve` command of each method with a drafter."""
    return {method.name: shlex.join(serve_line(method.engine.server)) for method in methods if method.drafters}


def serve_line(server: VllmServer) -> list[str]:
    """A server's command without the options of this suite."""
    words = server.command[1:]
    return ["vllm", *words[: words.index("--host")]]
