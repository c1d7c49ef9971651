"""What README's table of measurements has: commands, the files that hold what they wrote, and templates of the figures.

Braces hold a path into the file and a number's form.  `{A / B:.2f}` is one number over another.  In a path
`rows[method=tree *&source=live]` is the first row that is like that, and `live[+num]` the sum of a key over a list.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A command, its file in docs/reports, and what is told of it."""

    name: str  # of the file, without .json
    command: str
    rows: tuple[tuple[str, str], ...]  # what, figure


EXPERTS = ("chat", "math", "medical", "python", "science", "sql", "summarization", "translation")
MIXED = ("general", *EXPERTS, "retrieval")  # of the pool without the datastore
BANDITS = ("ucb1", "metasd_ucb", "ucbspec", "thompson", "exp3spec")
SCHEDULES = {  # further policies: what is typed for them
    "ltd-average": "policy=ltd policy.objective=average name=ltd-average",
    "resps": "policy=resps",
    "resps-text": "policy=resps-text",
    "resps-maxent": "policy=resps-maxent",
}
FIRST = "curves.quickstart.first"
TUNED = ("general alone", "sql alone", "quickstart alone", "the bundle")
STATIC = "curves.replayed[name=best static tree*].tokens_per_s"
REPLAYED = (
    "replayed on {config.traces.num_test} held-out answers, tokens/s over the best static tree of the training ones"
)
POLICY = f"{{curves.replayed[name=policy *].tokens_per_s / {STATIC}:.3f}}x"
FORESIGHT = f"{{curves.replayed[name=perfect foresight].tokens_per_s / {STATIC}:.3f}}x"
DIFFERENT = (
    "answers of {figures.num_prompts} prompts ({figures.num_tokens:,} tokens) that differ from autoregressive "
    "decoding: tree, tree with retrieval, retrieval",
    "{rows[method=eagle3].mismatches}, {rows[method=eagle3+retrieval].mismatches} and "
    "{rows[method=retrieval].mismatches}",
)

WITH_STORE = (
    "--datastore drafterforge/shipped/smollm2-135m/drafters/store --prompts {figures.num_prompts} --max-batch 16"
)
ALL_DIFFERENT = (
    f"{DIFFERENT[0]}, tree with the datastore, datastore",
    DIFFERENT[1].replace(" and", ",") + ", {rows[method=eagle3+datastore].mismatches} and "
    "{rows[method=datastore].mismatches}",
)


def mat(*methods: str) -> str:
    """MAT of methods that were replayed."""
    return ", ".join(f"{{rows[method={method}&source=replay].mat:.2f}}" for method in methods)


SOURCES = (
    Source(
        "quickstart",
        "scripts/quickstart",
        (
            (
                f"tokens/s of the shipped pool on {{{FIRST}[method=autoregressive].num_prompts}} held-out sql prompts, "
                "before anything is trained: autoregressive, the pool, the sql expert with the datastore in its trees; "
                "seconds until that is shown",
                f"{{{FIRST}[method=autoregressive].tokens_per_s:.1f}}, "
                f"{{{FIRST}[method=* over the pool].tokens_per_s:.1f}} "
                f"({{{FIRST}[method=* over the pool].speedup:.2f}}x), "
                f"{{{FIRST}[method=*+*].tokens_per_s:.1f}} "
                f"({{{FIRST}[method=*+*].speedup:.2f}}x); {{curves.quickstart.seconds.open:.0f}} s",
            ),
            (
                "MAT on {rows[method=autoregressive].num_prompts} held-out prompts: generalist, sql expert, the expert "
                "after {curves.quickstart.training_steps} more steps on the answers to "
                "{curves.quickstart.train_prompts} prompts ({curves.quickstart.answer_tokens:,} tokens), the bundle",
                ", ".join(f"{{rows[method={name}].mat:.2f}}" for name in TUNED),
            ),
            (
                "the same over autoregressive; answers that differ from it",
                ", ".join(f"{{rows[method={name}].speedup:.2f}}x" for name in TUNED)
                + " (95 % {rows[method=the bundle].speedup_ci95.0:.2f}-{rows[method=the bundle].speedup_ci95.1:.2f}); "
                + ", ".join(f"{{rows[method={name}].mismatches}}" for name in TUNED),
            ),
            (
                "seconds of all four steps; of each: first look, tuning, export, measuring",
                "{curves.quickstart.total_s:.0f}; "
                + ", ".join(
                    f"{{curves.quickstart.seconds.{step}:.0f}}" for step in ("open", "tune", "export", "evaluate")
                ),
            ),
        ),
    ),
    Source(
        "bench_train",
        "python scripts/bench_train.py",
        (
            (
                "answer tokens/s of training, {rows[method=drafterforge].ttt_steps} TTT steps, over speculators on the "
                "same work: draft head frozen, nothing computed twice",
                "{rows[method=drafterforge, head frozen, no recomputing].answer_tokens_per_s / "
                "rows[method=speculators].answer_tokens_per_s:.2f}x",
            ),
            (
                "the same with our draft head trained and values recomputed, as by default",
                "{figures.ratio_to_speculators_head_trained:.2f}x",
            ),
            ("largest difference of per-step losses from speculators'", "{figures.loss_max_abs_diff:.1e}"),
        ),
    ),
    Source(
        "bench_decode",
        "python scripts/bench_decode.py drafter=drafterforge/shipped/smollm2-135m/drafters/general "
        "--prompts {config.prompts} --max-new-tokens {config.max_new_tokens} "
        "--invariant-prompts {config.invariant_prompts} --openvino FOLDER",
        (
            (
                "tokens/s on {config.prompts} prompts of all domains, autoregressive over HF `generate`; OpenVINO "
                "GenAI over it; FlashSpec with prompt lookup over it",
                "{figures.ar_over_hf_generate:.2f}x; "
                "{rows[method=OpenVINO GenAI].tokens_per_s / rows[method=HF generate].tokens_per_s:.2f}x; "
                "{rows[method=FlashSpec*].tokens_per_s / rows[method=HF generate].tokens_per_s:.2f}x",
            ),
            (
                "retrieval over HF prompt lookup; over our autoregressive decoding",
                "{figures.retrieval_over_prompt_lookup:.2f}x; {rows[method=retrieval].over_autoregressive:.2f}x "
                "(95 % {rows[method=retrieval].ci95.0:.2f}-{rows[method=retrieval].ci95.1:.2f})",
            ),
            (
                "the generalist's tree over autoregressive; with what retrieval proposes in it",
                "{rows[method=tree *].over_autoregressive:.2f}x (MAT {rows[method=tree *].mat:.2f}); "
                "{rows[method=eagle3+retrieval].over_autoregressive:.2f}x "
                "(95 % {rows[method=eagle3+retrieval].ci95.0:.2f}-{rows[method=eagle3+retrieval].ci95.1:.2f}, "
                "MAT {rows[method=eagle3+retrieval].mat:.2f})",
            ),
            (
                "share of a tree cycle outside target and drafter forwards; cycle over its forwards run alone",
                "{figures.host_share:.1%}; {figures.cycle_over_forwards:.2f}x",
            ),
            ("16 verified nodes over one token", "{figures.verify16_over_one:.2f}x"),
            (
                "bfloat16: a cycle's time with `numerics=invariant` over `fast`, in the method that pays most",
                "{figures.invariant_over_fast:.2f}x",
            ),
            (
                "answers that differ from autoregressive decoding, float32; bfloat16 with `invariant`",
                "{figures.mismatches_fp32}; {figures.mismatches_invariant}",
            ),
        ),
    ),
    Source(
        "lossless",
        "python scripts/check_lossless.py drafter=runs/smollm2-135m/drafters/quickstart "
        "--prompts {figures.num_prompts}",
        (DIFFERENT,),
    ),
    Source(
        "lossless-general",
        f"python scripts/check_lossless.py drafter=drafterforge/shipped/smollm2-135m/drafters/general {WITH_STORE}",
        (
            ALL_DIFFERENT,
            (
                "MAT on them: the generalist's tree, with retrieval, with the datastore; the datastore alone",
                "{rows[method=eagle3].mat:.2f}, {rows[method=eagle3+retrieval].mat:.2f}, "
                "{rows[method=eagle3+datastore].mat:.2f}; {rows[method=datastore].mat:.2f}",
            ),
        ),
    ),
    Source(
        "lossless-bfloat16",
        "python scripts/check_lossless.py drafter=drafterforge/shipped/smollm2-135m/drafters/general "
        f"{WITH_STORE} --dtype bfloat16",
        (ALL_DIFFERENT,),
    ),
    Source(
        "quick",
        "drafterforge eval suite=quick",
        (
            (
                "live, {rows[method=autoregressive].num_prompts} requests one by one, tokens/s over autoregressive: "
                "generalist, `hedgespec` over the pool, one tree of generalist and retrieval",
                "{rows[method=general alone&source=live].speedup:.2f}x, "
                "{rows[method=hedgespec over the pool].speedup:.2f}x, {rows[method=general+retrieval].speedup:.2f}x",
            ),
        ),
    ),
    Source(
        "routed",
        "drafterforge eval suite=domains pool=routed name=routed limit=3 suite.openvino=FOLDER suite.replay=false "
        '"suite.selectors=[]" "suite.methods=[generalist,default,hf_generate,hf_prompt_lookup,openvino]"',
        (
            (
                "live, {rows[method=autoregressive].num_prompts} prompts of all domains, tokens/s: autoregressive; the "
                "shipped pool with the datastore in its trees, by the router; HF prompt lookup; OpenVINO GenAI",
                "{rows[method=autoregressive].tokens_per_s:.1f}; {rows[method=router over the pool].tokens_per_s:.1f} "
                "({rows[method=router over the pool].speedup:.2f}x, 95 % "
                "{rows[method=router over the pool].speedup_ci95.0:.2f}-"
                "{rows[method=router over the pool].speedup_ci95.1:.2f}); "
                "{rows[method=HF prompt lookup*].tokens_per_s:.1f}; {rows[method=OpenVINO*].tokens_per_s:.1f}",
            ),
            (
                "the same of the generalist with the datastore, for every prompt; MAT of both; answers that differ",
                "{rows[method=general+store alone].speedup:.2f}x; {rows[method=router over the pool].mat:.2f}, "
                "{rows[method=general+store alone].mat:.2f}; {rows[method=router over the pool].mismatches}",
            ),
        ),
    ),
    Source(
        "mixed",
        "drafterforge eval suite=mixed",
        (
            (
                "MAT on {rows[method=hedgespec&source=replay].num_prompts} requests over eight domains, "
                f"{{config.suite.conversations:.0%}} of them going on from another: {', '.join(MIXED)}, each alone",
                mat(*(f"{name} alone" for name in MIXED)),
            ),
            (
                "the best drafter of each request in hindsight; `hedgespec`, which switches within requests",
                mat("best in hindsight", "hedgespec"),
            ),
            (f"tuned {', '.join(f'`{name}`' for name in BANDITS)}", mat(*BANDITS)),
            (
                "p that `hedgespec` is no better than these",
                ", ".join(f"{{rows[method={name}&source=replay].p_selector_no_better:.0e}}" for name in BANDITS),
            ),
            (
                "live, {rows[method=autoregressive].num_prompts} requests one by one, tokens/s over autoregressive: "
                "generalist, `hedgespec` over the pool",
                "{rows[method=general alone&source=live].speedup:.2f}x and "
                "{rows[method=hedgespec over the pool].speedup:.2f}x "
                "(95 % {rows[method=hedgespec over the pool].speedup_ci95.0:.2f}-"
                "{rows[method=hedgespec over the pool].speedup_ci95.1:.2f})",
            ),
            (
                "requests whose live cycles differ from the replay, each drafter and `hedgespec` over all of them",
                "{curves.live[+requests_with_other_cycles]}",
            ),
        ),
    ),
    Source(
        "bench_pool",
        f"python scripts/bench_pool.py drafters=general,{','.join(EXPERTS[:-1])}",
        (
            (
                "reading with a generalist and 7 LoRA experts, and with 8 full drafters, over reading with one",
                "{figures.lora8_over_one:.2f}x and {figures.full8_over_one:.2f}x",
            ),
            (
                "weights of the former over those of one; NormalHedge update, 32 drafters",
                "{figures.lora8_memory_over_one:.2f}x; {figures.normalhedge32_ms:.3f} ms",
            ),
            (
                "choosing, judging and learning in a cycle; with the other drafters' reading",
                "{figures.selection_share:.1%}; {figures.pool_share:.1%}",
            ),
        ),
    ),
    Source(
        "traces",
        "drafterforge train-policy policy=planner",
        (
            (
                "recorded first, {metrics.answers} answers to tasks no drafter learned from: positions; bytes of each",
                "{metrics.positions:,}; {metrics.bytes_per_position:,.0f}",
            ),
        ),
    ),
    Source(
        "policy-marginal",
        "drafterforge train-policy policy=marginal live.num_prompts={config.live.num_prompts}",
        (
            (
                f"{REPLAYED}: the policy; perfect foresight",
                f"{{curves.replayed[name=policy marginal].tokens_per_s / {STATIC}:.3f}}x; {FORESIGHT}",
            ),
            (
                "live, {rows[method=policy marginal].num_prompts} held-out answers, over the same tree",
                "{rows[method=policy marginal].over_best_static:.3f}x "
                "(p {rows[method=policy marginal].p_over_best_static:.1g}), "
                "{rows[method=policy marginal].mismatches} mismatches",
            ),
            ("share of a cycle that the policy takes", "{rows[method=policy marginal].policy_share:.2%}"),
        ),
    ),
    Source(
        "policy-planner",
        "drafterforge train-policy policy=planner live.num_prompts={config.live.num_prompts}",
        (
            (f"{REPLAYED}: the policy; perfect foresight", f"{POLICY}; {FORESIGHT}"),
            (
                "live, {rows[method=policy *].num_prompts} held-out answers, over the same tree",
                "{rows[method=policy *].over_best_static:.3f}x (p {rows[method=policy *].p_over_best_static:.1g}), "
                "{rows[method=policy *].mismatches} mismatches",
            ),
            ("share of a cycle that the policy takes", "{rows[method=policy *].policy_share:.2%}"),
        ),
    ),
    Source(
        "policy-ltd",
        "drafterforge train-policy policy=ltd live.num_prompts={config.live.num_prompts} "
        '"live.policies=[ltd-average,resps,resps-text,resps-maxent]"',
        (
            (REPLAYED, f"{{curves.replayed[name=policy ltd].tokens_per_s / {STATIC}:.3f}}x"),
            (
                "live, {rows[method=policy ltd].num_prompts} held-out answers, over the same tree: `ltd`, "
                "`ltd-average`, `resps`, `resps-text`, `resps-maxent`",
                ", ".join(
                    f"{{rows[method=policy {name}].over_best_static:.3f}}x"
                    for name in ("ltd", "ltd-average*", "resps", "resps-text*", "resps-maxent*")
                ),
            ),
            ("share of a cycle that `ltd` takes", "{rows[method=policy ltd].policy_share:.2%}"),
        ),
    ),
    *(
        Source(f"policy-{name}", f"drafterforge train-policy {typed}", ((REPLAYED, POLICY),))
        for name, typed in SCHEDULES.items()
    ),
    Source(
        "router",
        "drafterforge train-policy policy=router router.num_train={config.router.num_train} "
        "router.num_val={config.router.num_val} router.num_test={config.router.num_test}",
        (
            (
                "domain named right, of {rows[prompts=as written].num_prompts} held-out prompts: as written; two "
                "answers asked for; a role; another language (kinds that it trained on, in other wordings)",
                "{metrics.accuracy.as written:.0%}; {metrics.accuracy.two_answers:.0%}; {metrics.accuracy.role:.0%}; "
                "{metrics.accuracy.language:.0%}",
            ),
        ),
    ),
    Source(
        "ood",
        "drafterforge eval suite=ood suite.num_prompts={config.suite.num_prompts} pool.router=router "
        '"suite.selectors=[hedgespec,normalhedge,ucbspec]"',
        (
            (
                "MAT on {rows[method=hedgespec].num_prompts} rephrased requests: the router's drafter, `hedgespec`, "
                "best in hindsight",
                mat("router", "hedgespec", "best in hindsight"),
            ),
        ),
    ),
    Source(
        "bench_kernels",
        "python scripts/bench_kernels.py",
        (
            (
                "GFLOP/s of the compiled kernels in a pass of all the target's linear layers, 1, 6 and 16 rows, "
                "bfloat16 weights; of torch",
                ", ".join(f"{{figures[rows={n}&way=kernels, bf*].gflops:.0f}}" for n in (1, 6, 16))
                + "; "
                + ", ".join(f"{{figures[rows={n}&way=torch].gflops:.0f}}" for n in (1, 6, 16)),
            ),
            (
                "over torch, 1, 6 and 16 rows: bfloat16 weights; float32 weights",
                "; ".join(
                    ", ".join(f"{{figures[rows={n}&way=kernels, {kind}*].speedup_over_torch:.2f}}x" for n in (1, 6, 16))
                    for kind in ("bf", "fl")
                ),
            ),
            (
                "6 and 16 rows over one row, bfloat16 weights",
                ", ".join(f"{{figures[rows={n}&way=kernels, bf*].over_fewest_rows:.2f}}x" for n in (6, 16)),
            ),
        ),
    ),
    Source(
        "bench_replay",
        "python scripts/bench_replay.py",
        (
            (
                "replayed cycles a second, stepping and observing: "
                "{rows[part=stepping, seeing features].observation:,} and "
                "{rows[part=stepping, seeing children*].observation} numbers seen",
                "{rows[part=stepping, seeing features].cycles_per_s:,} and "
                "{rows[part=stepping, seeing children*].cycles_per_s:,}",
            ),
            (
                "Re-SpS trained by replay on {rows[part=training answers of the traces].answers} answers",
                "{figures.resps_budget_s:.1f} s",
            ),
            (
                "live cycles with drawn trees that differ from the replay, of {rows[part=live cycles].cycles:,} in "
                "{rows[part=live cycles].prompts} answers",
                "{figures.live_cycles_different}",
            ),
        ),
    ),
    Source(
        "distillation",
        "{command}",
        (
            (
                "settings that train best in equal minutes (`docs/distillation.md`): accept length of a chain of "
                "{validated_ttt_steps} drafted tokens, and lead over what it is compared with",
                "{winners}",
            ),
        ),
    ),
    Source(
        "calibrate",
        "drafterforge calibrate latency.num_prompts={config.latency.num_prompts} "
        "latency.num_held_out={config.latency.num_held_out}",
        (
            (
                "median error of predicted answer times on {config.latency.num_held_out} held-out answers, scaled by "
                "tokens decoded beside each; unscaled",
                "{errors.total:.1%}; {errors.total_unscaled:.1%}",
            ),
        ),
    ),
)
