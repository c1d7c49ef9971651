"""A web page whose host name points at this machine is refused, unless there is a key."""

from __future__ import annotations

import socket
import threading

import pytest
from fastapi import Request

from drafterforge.config.serving import ServeConfig
from drafterforge.runtime.engine import Engine
from drafterforge.server.app import build_app
from drafterforge.server.guard import _is_local, _on_loopback
from drafterforge.server.serving import Server, listen
from tests.server.conftest import HTTP, WAIT_S, serving


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


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::ffff:192.0.2.7", False), ("192.0.2.7", False)],
)
def test_loopback_addresses_are_recognised_on_every_kind_of_socket(address, loopback):
    assert _on_loopback(Request({"type": "http", "server": (address, 8000)})) == loopback


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_socket_of_both_kinds_of_addresses_refuses_another_host_name(speaking):
    sock = listen("::", 0)
    server = Server(build_app(Engine(speaking), "tiny", ServeConfig()), 1.0, ready=(up := threading.Event()).set)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        assert up.wait(WAIT_S)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/models"
        assert HTTP.get(url, headers={"Host": "evil.example"}).status_code == 403 and HTTP.get(url).status_code == 200
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


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
