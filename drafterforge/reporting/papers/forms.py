"""Forms of all tables, in the order of docs/papers.md."""

from __future__ import annotations

from drafterforge.reporting.papers.policy_forms import POLICY_FORMS
from drafterforge.reporting.papers.selector_forms import SELECTOR_FORMS

FORMS = (*SELECTOR_FORMS, *POLICY_FORMS)
