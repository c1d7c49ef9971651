"""A web page whose host name points at this machine is refused, unless there is a key."""

from __future__ import annotations

import pytest

from drafterforge.config.serving import ServeConfig
from drafterforge.runtime.engine import Engine
from drafterforge.server.guard import _is_local
from tests.server.conftest import HTTP, serving


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("app.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("192.0.2.7", True),
        ("[::1]:8000", True),
        ("house.lan:8000", True),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example@localhost", True),
        ("localhost@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_local_host_names_are_recognised(host, local):
    assert _is_local(host, ServeConfig(host="house.lan").host) == local


def test_another_host_name_needs_a_key(speaking):
    headers = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    with serving(Engine(speaking)) as up:
        refused = HTTP.get(f"{up.url}/v1/models", headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden_host")
        assert HTTP.get(f"{up.url}/health", headers=headers).status_code == 200
        port = up.address[1]
        assert HTTP.get(f"http://localhost:{port}/v1/models").status_code == 200
    with serving(Engine(speaking), api_key="sesame") as up:
        headers["Authorization"] = "Bearer sesame"
        assert HTTP.get(f"{up.url}/v1/models", headers=headers).status_code == 200
