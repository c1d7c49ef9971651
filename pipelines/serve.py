"""Serve the engine over HTTP in OpenAI's protocol until Ctrl-C or SIGTERM, batching concurrent requests."""

from __future__ import annotations

import dataclasses
import os

from drafterforge.assembly.engines import open_engine
from drafterforge.config.hints import flags_for
from drafterforge.config.progress import bar, say
from drafterforge.config.serving import API_KEY, ServeConfig
from drafterforge.errors import CheckFailedError, ConfigError

Config = ServeConfig
EXTRA = ("fastapi", "starlette", "pydantic", "uvicorn", "h11", "prometheus_client")


def run(cfg: Config) -> None:
    try:
        from drafterforge.server.app import build_app
        from drafterforge.server.serving import Server, address_of, is_loopback, listen
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA:
            raise
        raise ConfigError(f'serve needs {error.name}; type pip install ".[serve]" in the repository') from error
    cfg = dataclasses.replace(cfg, api_key=cfg.api_key or os.environ.get(API_KEY, ""))
    if not all(char.isprintable() and not char.isspace() for char in cfg.api_key):  # no client could send it
        raise ConfigError(f"the API key holds spaces, line ends or bytes that are no UTF-8; set another {API_KEY}")
    if cfg.learn.record:
        os.umask(0o077)  # what clients ask is not for other users of the machine
    with listen(cfg.host, cfg.port) as sock:
        if not cfg.api_key and not is_loopback(sock):
            public = f"warning: host={cfg.host} serves everyone who can reach this machine, without a key"
            say(f"{public}; set {API_KEY}=...")
        engine, model = open_engine(cfg, cfg.max_batch)
        if engine.graphs:
            with bar("capturing graphs", engine.max_batch) as line:
                engine.warm_up(line.advance)
        url = address_of(sock)
        app = build_app(engine, model, cfg)
        if (limit := app.state.service.connections.limit) < cfg.max_connections:
            say(f"warning: the limit of open files allows {limit} connections; raise it with ulimit -n")
        ready = f"{model} answers at {url}/v1, figures at {url}/metrics; Ctrl-C ends"
        if cfg.learn.record:
            folder = cfg.learn.traffic_dir(cfg.runs_dir, engine.target.name)
            typed = f"{flags_for(engine.target.settings, cfg.runs_dir)}{cfg.learn.folder_flag}"
            say(f"answers are recorded in {folder}; `drafterforge learn status{typed}` shows how many")
        server = Server(app, cfg.grace_s, ready=lambda: say(ready))
        server.run([sock])
    if server.worker.dead:
        raise CheckFailedError("decoding has ended with the error above, and the server with it")
    say("the server has stopped")
