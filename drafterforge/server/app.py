"""The routes of the server: chat and text completions, models, health and metrics."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from drafterforge.config.serving import ServeConfig
from drafterforge.runtime.engine import Engine
from drafterforge.server.failures import ApiError, engine_failed, no_such_path, plain_error
from drafterforge.server.guard import build_guard
from drafterforge.server.protocol import ChatRequest, CompletionRequest
from drafterforge.server.service import Service

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def build_app(engine: Engine, model: str, cfg: ServeConfig) -> FastAPI:
    """The app that serves the engine under the name `model`; `app.state.service` is its `Service`."""
    service = Service(engine, model, cfg)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(title="drafterforge", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    app.include_router(_open_routes(service))
    app.include_router(_guarded_routes(service), dependencies=[Depends(build_guard(service))])

    def failure(request: Request, error: ApiError) -> JSONResponse:
        if request.url.path in (CHAT, COMPLETIONS):
            service.count(error.status)
        return JSONResponse(error.body, error.status, error.headers)

    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return failure(request, error)

    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return failure(request, no_such_path() if error.status_code == 404 else plain_error(error.status_code))

    async def bug(request: Request, error: Exception) -> JSONResponse:
        return failure(request, engine_failed())

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, bug)
    return app


def _open_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        status, content = service.health
        return JSONResponse(content, status)

    return router


def _guarded_routes(service: Service) -> APIRouter:
    router = APIRouter()
    card = {"id": service.model, "object": "model", "created": int(time.time()), "owned_by": "drafterforge"}

    @router.post(CHAT)
    async def chat(request: Request) -> Response:
        return await service.respond(request, ChatRequest)

    @router.post(COMPLETIONS)
    async def completions(request: Request) -> Response:
        return await service.respond(request, CompletionRequest)

    @router.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [card]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> JSONResponse:
        service.require_model(name)
        return JSONResponse(card)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
