"""What training unrolls is what decoding drafts: the same chain at every root of a greedy text."""

from __future__ import annotations

import pytest
import torch

from drafterforge.drafters.eagle3.fused import FusedDrafter
from drafterforge.drafters.eagle3.stack import Eagle3Proposer
from drafterforge.drafters.eagle3.train.ttt import PackedBatch, lay_out, unroll
from drafterforge.runtime.engine import Engine
from drafterforge.targets.capture import FeatureCapture
from drafterforge.tree.grow import TreeShape
from tests.models import NORMS, tiny_drafter, tiny_target, uneven

PROMPT, STEPS = [3, 14, 15, 9, 26, 5], 4


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_unrolled_chains_equal_drafted_chains(norms):
    target = tiny_target(eos_token_id=None)
    drafter = uneven(tiny_drafter(target, **norms))
    text = PROMPT + Engine(target).generate([PROMPT], 24)[0].tokens
    (seen,) = FeatureCapture(target)([text])
    tokens = torch.tensor(text)
    batch = PackedBatch(
        tokens=tokens,
        positions=torch.arange(len(text)),
        loss_mask=torch.arange(len(text)) >= len(PROMPT),
        lengths=[len(text)],
        features=seen.features.clone(),
        states=seen.states.clone(),
        argmax=seen.argmax.clone(),
    )
    layout = lay_out(batch, STEPS)
    with torch.no_grad():
        unrolled = drafter.token_ids[drafter.lm_head(unroll(drafter, batch, layout, STEPS, False)).argmax(-1)]
    compared = 0
    for row, slot in enumerate(layout.rows.tolist()):
        root = slot + 1  # the token of this slot; a cycle that starts here has committed text[:root]
        proposer = Eagle3Proposer(FusedDrafter(drafter, target.backbone.embedding))
        with torch.inference_mode():
            proposer.admit(tokens[: root + 1], seen.features[:root])
            drafted = (
                proposer.draft_trees(tokens[root : root + 1], TreeShape(STEPS + 1, STEPS, 1)).tokens[0, 1:].tolist()
            )
        # step i of training is fed the text, a chain its own tokens: they agree while the chain follows the text
        for step, token in enumerate(drafted):
            assert unrolled[step, row] == token, (row, step)
            compared += 1
            if root + 1 + step >= len(text) or text[root + 1 + step] != token:
                break
    assert compared >= layout.rows.numel() > 15


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
def test_unrolled_later_steps_equal_a_drafter_fed_the_text(norms):
    target = tiny_target(eos_token_id=None)
    drafter = uneven(tiny_drafter(target, **norms))
    text = PROMPT + Engine(target).generate([PROMPT], 16)[0].tokens
    (seen,) = FeatureCapture(target)([text])
    tokens = torch.tensor(text)
    mask = torch.arange(len(text)) >= len(PROMPT)
    batch = PackedBatch(
        tokens,
        torch.arange(len(text)),
        mask,
        [len(text)],
        seen.features.clone(),
        seen.states.clone(),
        seen.argmax.clone(),
    )
    layout = lay_out(batch, STEPS)
    with torch.no_grad():
        outputs = unroll(drafter, batch, layout, STEPS, False)

    class Forced(FusedDrafter):
        """Proposes the text itself, so that the chain's inputs are those of training."""

        def logits(self, hidden):
            self.outputs.append(self.normed(hidden))
            out = torch.zeros(1, self.spec.draft_vocab_size)
            out[0, (self.token_ids == self.text[len(self.outputs) - 1]).nonzero()[0]] = 9.0
            return out

    full = tiny_drafter(target, draft_vocab_size=61, **norms)
    full.load_state_dict(
        {k: v for k, v in drafter.state_dict().items() if k not in ("lm_head.weight", "d2t", "t2d")}, strict=False
    )
    forced = Forced(full, target.backbone.embedding)
    forced.packed = None  # its logits are not those of the packed head
    for row, slot in enumerate(layout.rows.tolist()[:-STEPS]):
        root = slot + 1
        forced.outputs, forced.text = [], text[root + 1 :]
        proposer = Eagle3Proposer(forced)
        with torch.inference_mode():
            proposer.admit(tokens[: root + 1], seen.features[:root])
            proposer.draft_trees(tokens[root : root + 1], TreeShape(STEPS + 1, STEPS, 1))
        torch.testing.assert_close(torch.cat(forced.outputs), outputs[:, row], rtol=1e-4, atol=1e-5)
