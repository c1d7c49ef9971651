"""Steps that measure selectors and drafters, some with pools that are trained for a table."""

from __future__ import annotations

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.reporting.papers.step import (
    CLOCK,
    REPLAY,
    TRAIN,
    Step,
    listed,
    replayed,
    timed,
)

HEDGE, BANDITS = ("hedgespec-paper", "normalhedge", "hedgespec"), ("ucbspec", "exp3spec")
METASD_BENCHMARKS = ("humaneval", "spec_bench", "cnn_dm", "qa", "gsm8k")
DEFAULT_EXPERTS = (
    "math",
    "chat",
    "medical",
    "summarization",
    "translation",
)  # of the default pool, which leaves out the other three shipped ones
QUESTIONS = 6  # that are timed of each benchmark, of every group of Spec-Bench one
METASD = ("metasd_ucb", "metasd_exp3", "metasd_halving", "ucb1", "ucb1_sliding", "ucb1_discounted")
SAMPLED = (0.5, 1.0)  # temperatures
SMALL_LM = "-causal_lm"  # end of the names of small language models
TASKS = ("python", "translation", "summarization", "science", "math")  # domains like MetaSD's tasks
BLACK_BOX = tuple(f"{domain}{SMALL_LM}" for domain in ("general", *TASKS))
VARIANTS = {"seed1": "seed=1", "rank4": "drafter.lora.rank=4", "rank64": "drafter.lora.rank=64"}
TRAINED_EXPERTS = tuple(f"{domain}-{variant}" for variant in VARIANTS for domain in POOL_DOMAINS)
MANY = (*POOL_DOMAINS, *TRAINED_EXPERTS)  # 32 experts: the shipped ones, and 24 that are trained
POOL_SIZES = (1, 2, 4, 8, 16, 32)
ANSWERS = (
    "drafterforge prepare-data domain=general name=papers-answers data.num_train=640 data.num_val=64 data.num_test=16 "
    "data.max_new_tokens=128"
)
TRAINED = (
    "answers=papers-answers trainer.tokens_per_batch=2048 eval.num_prompts=1 eval.max_new_tokens=32 eval.chain=false "
    "eval.check_float32=false"
)


def _small_lm(domain: str) -> str:
    few = "trainer.max_steps=80 trainer.val_every=40"
    return f"drafterforge train-drafter domain={domain} drafter=causal_lm {TRAINED} {few}"


def _experts(variant: str) -> str:
    """Train an expert of each domain, side by side."""
    domains, names = listed(*POOL_DOMAINS), listed(*(f"{domain}-{variant}" for domain in POOL_DOMAINS))
    few = "experiment=pool_smollm2_expert trainer.max_steps=20 trainer.val_every=20"
    return (
        f'drafterforge train-drafter "domain={domains}" "name={names}" drafter=lora {VARIANTS[variant]} {TRAINED} {few}'
    )


REPLAYED_STEPS = (
    Step(
        "domains",
        REPLAY,
        8,
        (replayed("domains", "papers-domains", "suite.num_prompts=160", *HEDGE, *BANDITS, "metasd_ucb"),),
        ("papers-domains",),
    ),
    Step(
        "benchmarks",
        REPLAY,
        29,
        (
            replayed(
                "papers",
                "papers-benchmarks",
                f'suite.questions=FOLDER "suite.benchmarks={listed(*METASD_BENCHMARKS, "alpaca")}" '
                "suite.num_prompts=80 suite.max_new_tokens=128",
                *METASD,
                *BANDITS,
                *HEDGE,
            ),
        ),
        ("papers-benchmarks",),
    ),
    Step(
        "router",
        REPLAY,
        10,
        (
            f"{TRAIN} policy=router router.num_train=200 router.num_val=40 router.num_test=50",
            replayed("ood", "papers-ood", "pool.router=router suite.num_prompts=64", *HEDGE, *BANDITS),
        ),
        ("router", "papers-ood"),
    ),
    Step(
        "sampled",
        REPLAY,
        10,
        tuple(
            replayed(
                "domains",
                f"papers-sampled-{temperature:g}",
                f"suite.num_prompts=96 suite.temperature={temperature:g}",
                *HEDGE,
                *BANDITS,
                "metasd_ucb",
            )
            for temperature in SAMPLED
        ),
        tuple(f"papers-sampled-{temperature:g}" for temperature in SAMPLED),
    ),
    Step(
        "black-box",
        REPLAY,
        41,
        (
            ANSWERS,
            *map(_small_lm, ("general", *TASKS)),
            replayed(
                "papers",
                "papers-black-box",
                f'suite.questions=FOLDER "suite.benchmarks={listed(*METASD_BENCHMARKS)}" suite.num_prompts=12 '
                f'suite.max_new_tokens=128 "pool.drafters={listed(*BLACK_BOX)}"',
                *METASD,
            ),
        ),
        ("papers-black-box",),
        folder="pools",
    ),
    Step(
        "many-drafters",
        REPLAY,
        25,
        (
            ANSWERS,
            *map(_experts, VARIANTS),
            replayed(
                "domains",
                "papers-many-drafters",
                f'suite.num_prompts=64 "pool.drafters={listed("general", *MANY)}"',
                *HEDGE,
                *BANDITS,
            ),
        ),
        ("papers-many-drafters",),
        folder="pools",
    ),
)
TIMED_STEPS = (
    Step(
        "domains-timed",
        CLOCK,
        6,
        (
            "drafterforge eval suite=domains name=papers-domains-timed limit=4 suite.replay=false "
            f'"suite.methods={listed("generalist", "expert", *BANDITS, *HEDGE)}"',
        ),
        ("papers-domains-timed",),
    ),
    Step(
        "benchmarks-timed",
        CLOCK,
        21,
        (
            timed(
                "papers-benchmarks-timed",
                (*METASD_BENCHMARKS, "alpaca"),
                QUESTIONS,
                "generalist",
                *DEFAULT_EXPERTS,
                "retrieval",
                "store",
                *METASD,
                *BANDITS,
            ),
        ),
        ("papers-benchmarks-timed",),
    ),
    Step(
        "black-box-timed",
        CLOCK,
        21,
        (
            timed(
                "papers-black-box-timed",
                METASD_BENCHMARKS,
                QUESTIONS,
                *BLACK_BOX,
                *METASD,
                more=f'"pool.drafters={listed(*BLACK_BOX)}"',
            ),
        ),
        ("papers-black-box-timed",),
        folder="pools",
    ),
    Step(
        "many-drafters-timed",
        CLOCK,
        5,
        (
            "drafterforge eval suite=scaling name=papers-many-drafters-timed suite.replay=false suite.temperatures=[] "
            "suite.batch_sizes=[] suite.context_lengths=[] suite.methods=[generalist,pool] "
            f'"suite.pool_sizes={listed(*map(str, POOL_SIZES))}" "pool.drafters={listed("general", *MANY)}"',
        ),
        ("papers-many-drafters-timed",),
        folder="pools",
    ),
)
