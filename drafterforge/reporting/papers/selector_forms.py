"""Forms of the tables of HedgeSpec, MetaSD and BanditSpec."""

from __future__ import annotations

from dataclasses import replace

from drafterforge.config.data import POOL_DOMAINS
from drafterforge.config.evaluation import ALL
from drafterforge.reporting.papers.evidence import MANY_DRAFTERS, SMALL_LMS
from drafterforge.reporting.papers.form import ALONE, BEST_ALONE, GENERALIST_ALONE, Form, Line, columns_of
from drafterforge.reporting.papers.rows import EXPERT, NONE
from drafterforge.reporting.papers.selector_steps import POOL_SIZES

TEMPERATURES = (0.0, 0.5, 1.0)
NOT_IN_POOL = "not in the pool"  # a drafter of a paper that this pool has none like
RETRIEVAL = Line("retrieval (as PLD)", drafter="retrieval")
HINDSIGHT = Line("best in hindsight", "oracle", figures=("mat",))
UCBSPEC, EXP3SPEC = Line("UCBSpec", "ucbspec"), Line("EXP3Spec", "exp3spec")
HEDGESPEC = (
    Line("HedgeSpec, as in its theorem", "hedgespec-paper"),
    Line("HedgeSpec, most likely drafter", "normalhedge"),
    Line("HedgeSpec (ours)", "hedgespec"),
)
DOMAINS = columns_of(*POOL_DOMAINS)
EVERYTHING = {"all domains": (ALL,)}
METASD_COLUMNS = {
    "Code": ("humaneval", "python"),
    "Translation": ("spec_bench/translation", "translation"),
    "Summarization": ("cnn_dm", "summarization"),
    "QA": ("qa", "science"),
    "Math": ("gsm8k", "math"),
}
PROMPTS = {"as written": ("as written",), "two answers": ("two_answers",), "role": ("role",), "language": ("language",)}
METASD_LINES = (
    Line("one for all (generalist)", drafter=GENERALIST_ALONE),
    Line("best drafter alone", drafter=BEST_ALONE),
    HINDSIGHT,
    Line("MetaSD-UCB", "metasd_ucb"),
    Line("MetaSD-EXP3", "metasd_exp3"),
    Line("MetaSD-SH (halving)", "metasd_halving"),
    Line("UCB1", "ucb1"),
    Line("UCB1, sliding window", "ucb1_sliding"),
    Line("UCB1, discounted", "ucb1_discounted"),
)
SELECTOR_FORMS = (
    Form(
        "hedgespec",
        "HedgeSpec: drafter selection, by domain",
        "The paper's domains are Python, Math, Biology, Chemistry, MedicalQA, CNN/DM and SQL. Its experts are whole "
        "heads, trained on domains that the public generalist had not seen; [Do experts pay?](results.md"
        "#do-experts-pay) measures such experts. Those of this table are LoRA adapters of rank 16 of a generalist "
        "that learned all eight domains, and gain next to nothing; what selectors gain over the generalist is mostly "
        "the datastore and retrieval, which the paper's pool lacks. Prompts are of this package's grammars. Answers "
        "end after 128 tokens: there are no long chains of reasoning. HedgeSpec, as in its theorem, draws a drafter "
        "with its weight and learns from delayed rewards by the reduction BOLD; the row after it scores every drafter "
        "in every cycle, as the paper's experiments do, and plays the one with the largest weight; ours weighs "
        "learners that forget at different rates. "
        "Best in hindsight decodes each request with the drafter that was best for it. Tokens/s are of too few "
        "prompts to compare domains.",
        DOMAINS,
        ("mat", "tokens_per_s"),
        (ALONE, Line("the domain's expert", drafter=EXPERT), UCBSPEC, EXP3SPEC, *HEDGESPEC, HINDSIGHT),
        ("domains", "domains-timed"),
    ),
    Form(
        "hedgespec_natural",
        "HedgeSpec: drafter selection on natural prompts (our question)",
        "As the table above, on questions of public benchmarks instead of prompts of this package's grammars.",
        {**METASD_COLUMNS, "Alpaca": ("alpaca",), "Spec-Bench": ("spec_bench",)},
        ("mat",),
        (ALONE, Line("best drafter alone", drafter=BEST_ALONE), UCBSPEC, EXP3SPEC, *HEDGESPEC, HINDSIGHT),
        ("benchmarks",),
    ),
    Form(
        "drafters",
        "HedgeSpec: each drafter alone, by domain",
        "Expected: an expert is best in its own domain, the generalist on average.",
        DOMAINS,
        ("mat",),
        (),  # filled with the drafters of the pool
        ("domains",),
    ),
    Form(
        "scaling",
        "HedgeSpec: pool scaling",
        "MAT against the number of drafters in the pool; prompts of this package's grammars.",
        {},  # filled with the measured sizes
        ("mat",),
        (*HEDGESPEC, UCBSPEC, EXP3SPEC),
        ("domains",),
    ),
    Form(
        "many_drafters",
        "HedgeSpec: 32 drafters",
        "MAT against the number of drafters, up to 32 LoRA experts of one generalist: the eight shipped ones, and for "
        "each of their domains three with another seed or rank, trained for 20 steps. They learn answers that the "
        "generalist has learned, and draft almost like it: the table shows what drafters cost, not what they bring. "
        "Pools are drawn at random, four of each size; those that are timed begin with the generalist, and decode one "
        "prompt a domain. Ours evaluates every drafter in every cycle, which costs speed.",
        {f"N = {size}": (str(size),) for size in POOL_SIZES},
        ("mat",),
        (
            *HEDGESPEC[:-1],
            replace(HEDGESPEC[-1], figures=("mat", "tokens_per_s")),
            UCBSPEC,
            EXP3SPEC,
        ),
        ("many-drafters", "many-drafters-timed"),
        pool=MANY_DRAFTERS,
    ),
    Form(
        "regret",
        "HedgeSpec: regret",
        "Cycles above those of the best drafter of each request in hindsight, mean over requests.",
        EVERYTHING,
        ("regret_cycles",),
        (ALONE, UCBSPEC, EXP3SPEC, *HEDGESPEC),
        ("domains",),
    ),
    Form(
        "hedgespec_cost",
        "HedgeSpec: cost of a cycle",
        "Ours are milliseconds a cycle: all levels that are drafted, and the drafters that are evaluated. "
        "The paper's are of a single pass.",
        EVERYTHING,
        ("verify_ms", "draft_ms", "select_ms"),
        (Line("generalist alone", drafter=GENERALIST_ALONE, figures=("verify_ms", "draft_ms")), *HEDGESPEC),
        ("domains-timed",),
    ),
    Form(
        "router",
        "HedgeSpec: accuracy of an offline router on rephrased prompts",
        "The paper's router reads the prompt's text with BERT; ours reads the target's features, and half of the "
        "prompts that it learned from were rephrased, by other templates than those of this table.",
        PROMPTS,
        ("accuracy",),
        (Line("offline router", "router"),),
        ("router",),
    ),
    Form(
        "ood",
        "HedgeSpec: a router and online selection on rephrased prompts",
        "A stream of requests in wordings that the router was not trained on. The router knows domains, so it never "
        "chooses the datastore, which emits more tokens a cycle here than any neural drafter, see the best drafter "
        "alone; HedgeSpec does choose it. HedgeSpec (ours) begins each request with the router's advice. Prompts are "
        "of this package's grammars, rephrased by templates.",
        {"rephrased": ("ood",)},
        ("mat",),
        (
            ALONE,
            Line("best drafter alone", drafter=BEST_ALONE),
            Line("offline router", "router"),
            UCBSPEC,
            EXP3SPEC,
            *HEDGESPEC,
            HINDSIGHT,
        ),
        ("router",),
    ),
    Form(
        "metasd",
        "MetaSD: drafter selection, by task",
        "Block efficiency is the share of drafted levels that were accepted, the paper's reward BE. The best drafter "
        "alone is the best of each column, if all drafters of the pool were measured there. The paper gives no value "
        "of its exploration strength, of EXP3's learning rate and of the cycles for which halving tries the drafters; "
        "ours are 1, EXP3Spec's and 32.",
        METASD_COLUMNS,
        ("speedup", "mat", "accept_rate"),
        (*METASD_LINES, RETRIEVAL),
        ("benchmarks", "benchmarks-timed"),
    ),
    Form(
        "metasd_black_box",
        "MetaSD: small language models as drafters, by task",
        "The black box of the paper: drafters that see no features, here language models of two layers, one for all "
        "and one for each of five domains, trained for 80 steps on 640 answers.",
        METASD_COLUMNS,
        ("speedup", "mat", "accept_rate"),
        METASD_LINES,
        ("black-box", "black-box-timed"),
        pool=SMALL_LMS,
    ),
    Form(
        "metasd_signal",
        "MetaSD: signal strength of the rewards",
        "R of the best and the second drafter: the squared gap of their mean rewards over the larger variance, over "
        "all positions of the answers. The larger R, the fewer cycles a bandit needs to tell them apart. In brackets: "
        "the reward prefers another drafter than the one with the largest MAT. BD of the datastore and of retrieval "
        "is of the few tokens that they propose.",
        METASD_COLUMNS,
        ("signal",),
        (
            Line("BD: 1 - TV", "divergence"),
            Line("BE: block efficiency", "efficiency"),
            Line("coverage (ours)", "coverage"),
        ),
        ("domains", "benchmarks"),
    ),
    Form(
        "banditspec",
        "BanditSpec: drafter selection, by benchmark",
        "Spec-Bench is the total of its six groups, if all were measured. The paper gives no value of its confidence "
        "delta; ours is 0.05. The paper's drafter is EAGLE-2, ours EAGLE-3. The best drafter alone is that of each "
        "benchmark, experts included.",
        {"Spec-Bench": ("spec_bench",), "Alpaca": ("alpaca",), **columns_of("CodeEditor", "DebugBench")},
        ("mat", "tokens_per_s"),
        (
            Line("autoregressive", NONE, "autoregressive", NONE),
            RETRIEVAL,
            Line("REST", drafter=NOT_IN_POOL),
            Line("datastore (as suffix tree)", drafter="store"),
            ALONE,
            Line("best drafter alone", drafter=BEST_ALONE),
            EXP3SPEC,
            UCBSPEC,
        ),
        ("benchmarks", "benchmarks-timed"),
    ),
    Form(
        "sampled",
        "Selectors at three temperatures",
        "MAT on prompts of all domains, replayed, fewer above T = 0. A sampled answer confirms drafts as "
        "a greedy one does: the token that plain decoding samples at that seed is accepted. The papers verify by "
        "rejection instead, and their theorems are about its acceptance probability, 1 - TV; [both are compared]"
        "(results.md#verification-of-sampled-chains). Above T = 0 a replay tells selectors of full information only "
        "whether a draft was accepted, where live decoding on a CPU tells them its probability. Options of selectors "
        "are the same at all temperatures.",
        {f"T = {temperature:g}": (f"{temperature:g}",) for temperature in TEMPERATURES},
        ("mat",),
        (ALONE, UCBSPEC, EXP3SPEC, Line("MetaSD-UCB", "metasd_ucb"), *HEDGESPEC, HINDSIGHT),
        ("domains", "sampled"),
    ),
)
