"""A program with the command line and the HTTP paths of `vllm serve`, which answers without a model.

python fake_vllm.py serve MODEL [options]; the variable FAKE_VLLM holds JSON:
calls: file that gets a line for each request.  dies, stalls: kind of the server that ends at its start, or whose health
never comes.  leaves: kind of the server that ends at a request.  differs: kind of the server whose last token differs.
sleeper: file for the process id of a child that ignores SIGTERM.
A server's kind is `plain`, `drafter` or `pool`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
MODEL_ERROR = """(EngineCore pid=7) ERROR [core.py:99] ValueError: the cache is too small
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
leaked semaphore"""
END, LENGTH = 2, 10  # the end token, and the length at which an answer of even prompts ends
ACCEPTED = {"drafter": [1, 0], "pool": [2, 1]}  # tokens of each cycle, repeated
lock = threading.Lock()
cycles = {"sql": 0, "general": 0}


def answer(prompt: list[int], limit: int, temperature: float, seed: int | None) -> list[int]:
    """Token ids that depend on the prompt, and on the seed if the temperature is not 0."""
    key = [prompt, seed if temperature else 0]
    tokens = [7 + hashlib.sha256(json.dumps([*key, i]).encode()).digest()[0] % 40 for i in range(limit)]
    return [*tokens[: LENGTH - 1], END] if limit >= LENGTH and sum(prompt) % 2 == 0 else tokens


def steps(kind: str, num_tokens: int) -> list[int]:
    """Accepted tokens of each cycle, counted before the answer is cut."""
    counts, left = [], num_tokens - 1
    while left > 0:
        counts.append(ACCEPTED[kind][len(counts) % 2])
        left -= counts[-1] + 1
    return counts


class Handler(BaseHTTPRequestHandler):
    kind, depth, model, options = "plain", 0, "", {}
    wbufsize = -1  # one packet per response, so that nothing waits for an acknowledgement

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def reply(self, content: object, code: int = 200) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        counters = [f'drafterforge_cycles_total{{engine="0",drafter="{n}"}} {c}.0' for n, c in cycles.items()]
        counters += [f'drafterforge_accepted_tokens_total{{drafter="{n}"}} {2.0 * c}' for n, c in cycles.items()]
        pages = {
            "/health": "",
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": self.model}]},
            "/metrics": "\n".join(["# HELP x", *(counters if self.kind == "pool" else []), ""]),
        }
        if self.path == "/health" and self.options.get("stalls") == self.kind:
            return self.reply({}, 503)
        self.reply(pages[self.path])

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.options.get("leaves") == self.kind:
            print("MemoryError: no room", flush=True)
            os._exit(3)
        assert request["model"] == self.model and request["cache_salt"]
        if request.get("logprobs"):
            logprobs = {"token_id:7": -0.5, "token_id:9": -0.75, "token_id:8": -2.0}
            return self.reply({"choices": [{"logprobs": {"top_logprobs": [logprobs]}}]})
        prompt, limit = request["prompt"], request["max_tokens"]
        if len(prompt) > 900:
            return self.reply({"error": {"message": "the prompt is too long"}}, 400)
        tokens = answer(prompt, limit, request["temperature"], request["seed"])
        if self.options.get("differs") == self.kind:
            tokens[-1] += 1
        if calls := self.options.get("calls"):
            with lock, open(calls, "a") as file:
                file.write(json.dumps([self.kind, limit, prompt]) + "\n")
        reason = "stop" if tokens[-1] == END else "length"
        response = {"choices": [{"token_ids": tokens, "text": "text", "finish_reason": reason}]}
        if self.kind != "plain":
            accepted = steps(self.kind, len(tokens))
            with lock:
                cycles["sql"] += len(accepted)
            counts = {"per_step_accepted": accepted, "per_step_drafted": [self.depth] * len(accepted)}
            response["metrics"] = {"speculative_decoding": counts}
        self.reply(response)


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--per-request-spec-decode-metrics", choices=["detailed"])
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    typed = parser.parse_args()
    Handler.options, Handler.model = json.loads(os.environ.get("FAKE_VLLM", "{}")), typed.model
    if drafting := typed.speculative_config:
        config = json.loads((Path(drafting["model"]) / "config.json").read_text())
        Handler.kind = "pool" if "drafterforge_pool" in config else "drafter"
        Handler.depth = drafting["num_speculative_tokens"]
        assert drafting["method"] == "eagle3" and typed.per_request_spec_decode_metrics
    print("serving", flush=True)
    if Handler.options.get("dies") == Handler.kind:
        sys.exit(MODEL_ERROR)
    if sleeper := Handler.options.get("sleeper"):
        child = subprocess.Popen([sys.executable, "-c", IGNORES_SIGTERM])
        with open(sleeper, "a") as file:
            file.write(f"{child.pid}\n")
    ThreadingHTTPServer((typed.host, typed.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
