"""The installed vLLM has every name that the plug-in uses, of both runners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafterforge.interop.vllm import contract
from tests.external.conftest import Client

pytestmark = pytest.mark.external


def site_packages(client: Client) -> Path:
    return next(client.folder.glob("lib/python*/site-packages"))


def test_vllm_has_the_names_of_both_runners(monkeypatch):
    monkeypatch.syspath_prepend(site_packages(Client("vllm").require()))
    contract.definitions.cache_clear()
    missing = contract.missing_of([*contract.USED.items(), *contract.USED_V2.items(), *contract.USED_STREAMING.items()])
    contract.definitions.cache_clear()
    assert missing == [], json.dumps(missing, indent=2)
