"""An absurd value in a document of a bundle is refused in one line or does no harm."""

from __future__ import annotations

import json

import pytest

from drafterforge.assembly.bundles import open_bundle
from drafterforge.bundle.record import BUNDLE
from drafterforge.errors import DrafterforgeError
from tests.bundle.absurd import ABSURD, node_paths, put
from tests.bundle.attacks import CONFIG, limited_memory
from tests.bundle.conftest import edit, rehash

DOCUMENTS = (BUNDLE, CONFIG, "drafters/sql/adapter/adapter_config.json", "policies/shapes/policy.json")
DOCUMENTS += ("routers/domains/router.json", "drafters/store/config.json")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_absurd_value_in_a_document_crashes_the_loader(bundle, served, document):
    full = json.loads((bundle / document).read_text())
    opened = refused = 0
    wrong: list[str] = []
    with limited_memory():
        for number, node in enumerate(node_paths(full)):
            for value in ABSURD[number % 8 :: 8]:  # an eighth of the values at each node
                content = put(full, node, value)
                if document == BUNDLE:
                    if isinstance(content, dict):
                        (bundle / BUNDLE).write_text(json.dumps({"digest": "", **content}))
                        edit(bundle, lambda content: None)
                    else:
                        (bundle / BUNDLE).write_text(json.dumps(content))
                else:
                    (bundle / document).write_text(json.dumps(content))
                    rehash(bundle, document)
                try:
                    engine = open_bundle(bundle, target=served)
                    engine.generate([[5, 6, 7]], 3)
                    opened += 1
                except DrafterforgeError as error:
                    refused += 1
                    if "\n" in str(error) or len(str(error)) > 2000:
                        wrong.append(f"{node} = {str(value)[:30]!r}: {str(error)[:200]}")
                except Exception as error:
                    wrong.append(f"{node} = {str(value)[:30]!r}: {str(error)[:200]!r} {type(error).__name__}")
    assert not wrong, "\n".join(wrong)
    assert refused > 0 and (opened > 0 or "store" in document)  # every value of a datastore's config is checked
