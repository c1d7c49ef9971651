"""Who may ask: clients with the key, if there is one, and no web page of another host."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import Request

from drafterforge.server.failures import ApiError, overloaded
from drafterforge.server.service import Service


def build_guard(service: Service) -> Callable[[Request], Awaitable[None]]:
    """A check that raises an `ApiError` for requests that are refused before their body is read."""
    api_key = service.cfg.api_key

    async def guard(request: Request) -> None:
        if service.connections.overloaded:
            raise overloaded()
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if origin is not None and not _same_host(origin, host):
            raise ApiError(403, "this server does not answer web pages of other hosts", code="forbidden_origin")
        # A web page can point its own host name at this machine (DNS rebinding), but cannot hide the name.
        if not api_key and host is not None and _on_loopback(request) and not _is_local(host, service.cfg.host):
            wanted = "without a key this server answers to localhost and to IP addresses; start it with a key"
            raise ApiError(403, f"{wanted} to use another host name", code="forbidden_host")
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        same_key = hmac.compare_digest(key.strip().encode("latin-1"), api_key.encode())
        if api_key and (scheme.lower() != "bearer" or not same_key):
            wanted = "wanted the header `Authorization: Bearer KEY` with this server's key"
            raise ApiError(401, wanted, code="invalid_api_key")

    return guard


def _same_host(origin: str, host: str | None) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:  # such as `http://[::1`
        return False


def _on_loopback(request: Request) -> bool:
    """Whether the request came to an address that only this machine reaches."""
    return _is_address(address := request.scope["server"][0]) and ipaddress.ip_address(address).is_loopback


def _is_local(host: str, listened: str) -> bool:
    """Whether a `Host` header is one that no stranger's DNS answers for; listened: `host=` of the server."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in ("localhost", listened.lower()) or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
