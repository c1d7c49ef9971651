"""Access control: requires the API key if there is one, and refuses web pages of other hosts."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import Request

from drafterforge.server.failures import ApiError, overloaded
from drafterforge.server.service import Service


def build_guard(service: Service) -> Callable[[Request], Awaitable[None]]:
    """A check that runs before a request's body is read, and raises an `ApiError` if the request is refused."""
    api_key = service.cfg.api_key

    async def guard(request: Request) -> None:
        if service.connections.overloaded:
            raise overloaded()
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if origin is not None and not _same_host(origin, host):
            raise ApiError(403, "this server does not answer web pages of other hosts", code="forbidden_origin")
        # DNS rebinding: a web page can point its own host name at this machine, but the request still names that host.
        if not api_key and host is not None and _on_loopback(request) and not _is_local(host, service.cfg.host):
            message = (
                "without an API key this server accepts only localhost and IP addresses as host; start it with a key "
                "to use another host name"
            )
            raise ApiError(403, message, code="forbidden_host")
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        same_key = hmac.compare_digest(key.strip(" \t").encode("latin-1"), api_key.encode())
        if api_key and (scheme.lower() != "bearer" or not same_key):
            message = "expected the header `Authorization: Bearer KEY` with the API key of this server"
            raise ApiError(401, message, code="invalid_api_key")

    return guard


def _same_host(origin: str, host: str | None) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:  # such as `http://[::1`
        return False


def _on_loopback(request: Request) -> bool:
    """Whether the request arrived at an address that only this machine can reach."""
    if not _is_address(name := request.scope["server"][0]):
        return False
    address = ipaddress.ip_address(name)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # with host=:: IPv4 addresses are mapped


def _is_local(host: str, server_host: str) -> bool:
    """Whether a `Host` header names this machine, without a foreign DNS server.  server_host: `host=` of the server."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in ("localhost", server_host.lower()) or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
