"""Learners of full information: each turns the losses of all drafters into probabilities."""

from __future__ import annotations

from drafterforge.selectors.learners.adanormalhedge import AdaNormalHedge
from drafterforge.selectors.learners.base import Learner
from drafterforge.selectors.learners.ftl import FollowTheLeader
from drafterforge.selectors.learners.hedge import Hedge
from drafterforge.selectors.learners.mixture import Mixture
from drafterforge.selectors.learners.normalhedge import NormalHedge
from drafterforge.selectors.learners.squint import Squint

LEARNERS: dict[str, type[Learner]] = {
    "hedge": Hedge,
    "normalhedge": NormalHedge,
    "adanormalhedge": AdaNormalHedge,
    "squint": Squint,
    "ftl": FollowTheLeader,
    "mixture": Mixture,
}
