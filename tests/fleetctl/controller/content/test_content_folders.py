"""Content of the package and of users' folders as one: what overrides what, and what is refused, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from alerts.evaluation.builtin import builtin_signal_files
from diagnostics.tree import tree_for_alert
from fleetctl.controller.content.content import BadContentError, Content, ContentObject, alert_names
from fleetctl.controller.content.load import load_content
from runbooks.approval import DEFAULT_RULES, ApprovalRule
from tests.fixtures.content import CAUSE, PAGE, RULE, TREE, put, write_content


def refused(*folders: Path) -> list[str]:
    with pytest.raises(BadContentError) as caught:
        load_content(folders)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems if problem.severity == "error"]


def object_of(content: Content, kind: str, name: str) -> ContentObject:
    (found,) = [one for one in content.objects if (one.kind, one.name) == (kind, name)]
    return found


def test_the_packages_own_content_has_no_fault_and_no_warning() -> None:
    content = load_content()
    assert content.warnings == ()
    assert {one.source for one in content.objects} == {"built-in"}


def test_a_users_rule_tree_cause_page_and_policy_are_added_to_ours(tmp_path: Path) -> None:
    content = load_content([write_content(tmp_path)])

    assert "NodeStepsSlow" in alert_names(content.rules)
    assert {"LLMNodeDown", "LLMTTFTHigh"} <= alert_names(content.rules)
    tree = tree_for_alert(content.trees, "NodeStepsSlow")
    assert tree is not None
    assert tree.name == "neighbours"
    page = content.page_for_cause("noisy_neighbour")
    assert page is not None
    assert page.name == "leave-host"
    assert content.policies == {"noisy_neighbour": "run"}
    own = {(one.kind, one.name) for one in content.objects if one.source == str(tmp_path)}
    assert own == {
        ("rule", "NodeStepsSlow"),
        ("case", "neighbours"),
        ("tree", "neighbours"),
        ("cause", "noisy_neighbour"),
        ("page", "leave-host"),
        ("policy", "noisy_neighbour"),
    }


def test_rules_of_approval_are_added_and_replace_built_in_ones_by_name(tmp_path: Path) -> None:
    rules = """
        approvals:
          drains:
            when: {action: [drain, replace-node], pool: decode, risk: [high], asked_by: person}
            approvers: 2
            expires: 30m
          override: {approvers: 0}
        """
    put(tmp_path / "policies/approvals.yaml", rules)
    rules_in_force = load_content([tmp_path]).approvals
    assert rules_in_force["drains"] == ApprovalRule(
        "drains",
        2,
        actions=frozenset({"drain", "replace-node"}),
        pools=frozenset({"decode"}),
        risks=frozenset({"high"}),
        by_automation=False,
        expires_s=1800.0,
    )
    assert rules_in_force["override"] == ApprovalRule("override", 0)
    assert rules_in_force.keys() == {"drains", *(rule.name for rule in DEFAULT_RULES)}


def test_an_alert_overrides_the_built_in_of_its_name_and_leaves_the_rest_of_its_file(tmp_path: Path) -> None:
    put(tmp_path / "rules/queue.yaml", RULE.replace("NodeStepsSlow", "LLMQueueDepth"))
    content = load_content([tmp_path])

    rules = [(group.name, rule) for group in content.rules for rule in group.rules if rule.name == "LLMQueueDepth"]
    assert [group for group, _ in rules] == ["neighbours"]
    assert "LLMPreemptions" in alert_names(content.rules)
    assert object_of(content, "rule", "LLMQueueDepth").overrides == ("built-in",)
    tree = tree_for_alert(content.trees, "LLMQueueDepth")
    assert tree is not None
    assert tree.name == "capacity"


def test_an_objective_overrides_one_series_and_is_evaluated_before_what_reads_it(tmp_path: Path) -> None:
    record = "0 * group by (pool, model, engine) (llm:up) + 5"
    rule = f'{{record: llm:objective_ttft_seconds, expr: "{record}"}}'
    put(tmp_path / "objectives/mine.yaml", f"groups: [{{name: mine, rules: [{rule}]}}]\n")
    content = load_content([tmp_path])

    rules = [rule for group in content.groups for rule in group.rules]
    found = [index for index, rule in enumerate(rules) if rule.name == "llm:objective_ttft_seconds"]
    readers = [i for i, rule in enumerate(rules) if rule.kind == "alert" and "llm:objective_ttft" in rule.query.text]
    assert len(found) == 1
    assert readers
    assert found[0] < min(readers)
    assert object_of(content, "objective", "llm:objective_ttft_seconds").overrides == ("built-in",)
    assert object_of(content, "objective", 'llm:objective_ratio{slo="ttft"}').overrides == ()


def test_signals_of_an_engine_are_exchanged_together_by_their_group(tmp_path: Path) -> None:
    (ours,) = [path for path in builtin_signal_files() if path.stem == "tgi"]
    put(tmp_path / "signals/tgi.yaml", ours.read_text("utf-8"))
    content = load_content([tmp_path])

    files = {group.name: group.file for group in content.signals}
    assert len(files) == len(content.signals)
    assert {name for name, file in files.items() if file == str(tmp_path / "signals/tgi.yaml")} == {
        name for name in files if name.startswith("signals_tgi")
    }
    assert object_of(content, "signal", "signals_tgi").overrides == ("built-in",)
    assert object_of(content, "signal", "signals_trtllm").overrides == ()


def test_the_signals_of_an_engine_that_we_do_not_know_are_added_with_its_metrics(tmp_path: Path) -> None:
    signals = """
    # engines: acme
    groups:
      - name: signals_acme
        rules:
          - record: llm:waiting
            expr: acme_queue_depth
    """
    put(tmp_path / "signals/acme.yaml", signals)
    assert any("acme" in problem for problem in refused(tmp_path))
    catalog = """
    namespaces:
      "acme_":
        engine: acme
        versions: "2.1"
        source: its manual, chapter 4
        families: {queue_depth: gauge requests}
    """
    put(tmp_path / "metrics_catalog.yaml", catalog)
    content = load_content([tmp_path])

    recording = [group.name for group in content.signals for rule in group.rules if rule.name == "llm:waiting"]
    assert "signals_acme" in recording
    assert "signals_engine" in recording


def test_a_tree_takes_the_alert_from_the_built_in_tree_that_explained_it(tmp_path: Path) -> None:
    put(
        tmp_path / "trees/mine.yaml",
        TREE.replace("NodeStepsSlow", "LLMQueueDepth").replace("noisy_neighbour", "overload"),
    )
    content = load_content([tmp_path])

    found = {alert: tree_for_alert(content.trees, alert) for alert in ("LLMQueueDepth", "LLMPreemptions")}
    assert {alert: tree.name for alert, tree in found.items() if tree} == {
        "LLMQueueDepth": "neighbours",
        "LLMPreemptions": "capacity",
    }


def test_of_two_folders_the_later_one_counts_and_both_overrides_are_shown(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, title in ((first, "one"), (second, "two")):
        put(
            folder / "pages/replace-node.md",
            PAGE.replace("leave-host", "replace-node")
            .replace("noisy_neighbour", "slow_node, gpu_fault, node_down, crash_loop, wrong_output")
            .replace("Take {{node}} out of service", f"{title} {{{{node}}}}"),
        )
    content = load_content([first, second])

    assert content.pages["replace-node"].title == "two {{node}}"
    assert object_of(content, "page", "replace-node").source == str(second)
    assert object_of(content, "page", "replace-node").overrides == ("built-in", str(first))


UNFIT = [
    (
        "tree names an unknown cause",
        {"tree": TREE.replace("cause: noisy_neighbour", "cause: noisy_neighbor")},
        'trees/neighbours.yaml:16: verdict neighbour: unknown cause "noisy_neighbor", did you mean "noisy_neighbour"?',
    ),
    (
        "question rules out an unknown cause",
        {"tree": TREE.replace("rules_out: noisy_neighbour", "rules_out: moon")},
        'trees/neighbours.yaml:10: question slow_here: unknown cause "moon"; known: adapter_cold,',
    ),
    (
        "cause names an unknown page",
        {"cause": CAUSE.replace("leave-host", "leave-hots")},
        'causes/neighbours.yaml:2: cause noisy_neighbour: unknown page "leave-hots", did you mean "leave-host"?',
    ),
    (
        "cause names a page that does not treat it",
        {"cause": CAUSE.replace("leave-host", "replace-node")},
        "its page replace-node does not say that it treats it; add noisy_neighbour to `causes` of that page",
    ),
    (
        "cause without page and without a word why",
        {"cause": CAUSE.replace("    page: leave-host\n", "")},
        "causes/neighbours.yaml:2: cause noisy_neighbour: give `page`",
    ),
    (
        "cause is confused with an unknown one",
        {"cause": CAUSE.replace("[slow_node]", "[slow_nod]")},
        'confused_with: unknown cause "slow_nod", did you mean "slow_node"?',
    ),
    (
        "cause shows in a signal that nobody records",
        {"cause": CAUSE.replace("step_seconds:mean", "step_second:mean")},
        'signals: no rule records "llm:step_second:mean"; did you mean "llm:step_seconds:mean"?',
    ),
    (
        "page for an unknown cause",
        {"page": PAGE.replace("[noisy_neighbour]", "[noisy_neighbour, moon]")},
        'pages/leave-host.md: causes: unknown cause "moon"',
    ),
    (
        "page with an unknown verb",
        {"page": PAGE.replace("fleetctl cordon", "fleetctl corden")},
        "pages/leave-host.md:22: unknown command 'corden'; did you mean 'cordon'?",
    ),
    (
        "alert without a tree",
        {"tree": TREE.replace("[NodeStepsSlow]", "[SomebodyElses]")},
        "rules/neighbours.yaml: alert NodeStepsSlow: no tree explains it; name it in `symptoms` of a tree",
    ),
    (
        "tree asks for a signal that nobody records",
        {"tree": TREE.replace("llm:step_seconds:mean", "llm:steps")},
        'question slow_here: no rule records "llm:steps"',
    ),
    (
        "rule on a signal that nobody records",
        {"rule": RULE.replace("llm:step_seconds:mean", "llm:step_seconds:men")},
        "rules/neighbours.yaml:5: neighbours, NodeStepsSlow: ",
    ),
    (
        "rule that is no PromQL",
        {"rule": RULE.replace("llm:step_seconds:mean >", "llm:step_seconds:mean >>")},
        "rules/neighbours.yaml:5: neighbours, NodeStepsSlow: ",
    ),
    ("not YAML", {"rule": "groups: ["}, "rules/neighbours.yaml:"),
    (
        "policy for an unknown cause",
        {"policy": "policies: {noisy: run}"},
        'policies/neighbours.yaml:1: policy noisy: unknown cause "noisy"',
    ),
    (
        "policy that there is not",
        {"policy": "policies: {noisy_neighbour: sometimes}"},
        "policies/neighbours.yaml:1: policies.noisy_neighbour: Input should be 'ask' or 'run'",
    ),
    (
        "rule of approval for an action that there is not",
        {"policy": "approvals: {two: {when: {action: drian}, approvers: 2}}"},
        'approval two: unknown action "drian", did you mean "drain"?',
    ),
    (
        "rule of approval for an unknown cause",
        {"policy": "approvals: {two: {when: {cause: noisy}, approvers: 2}}"},
        'policies/neighbours.yaml:1: approval two: unknown cause "noisy"',
    ),
    (
        "rule of approval with a wrong number",
        {"policy": "approvals: {two: {approvers: many}}"},
        "policies/neighbours.yaml:1: approvals.two.approvers: Input should be a valid integer",
    ),
    (
        "policy of before",
        {"policy": "policies: {noisy_neighbour: propose}"},
        "policies.noisy_neighbour: 'propose' is gone: it meant the same as 'ask'; write ask",
    ),
]


@pytest.mark.parametrize(("changes", "message"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_what_does_not_fit_is_refused_with_file_place_and_remedy(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    problems = refused(write_content(tmp_path, **changes))
    assert any(message in problem for problem in problems), problems


def test_everything_bad_in_all_files_is_told_at_once(tmp_path: Path) -> None:
    broken_tree = TREE.replace("if_yes: neighbour", "if_yes: nowhere").replace(
        '"> 0.025"', '"> 0.025"\n    colour: red'
    )
    broken_page = PAGE.replace("risk: low", "risk: none")
    folder = write_content(
        tmp_path, tree=broken_tree, page=broken_page, policy="policies: {}", rule=RULE.replace("for: 5s", "for: 5")
    )
    files = {problem.removeprefix(f"{folder}/").partition(":")[0] for problem in refused(folder)}
    assert files == {
        "trees/neighbours.yaml",
        "pages/leave-host.md",
        "policies/neighbours.yaml",
        "rules/neighbours.yaml",
    }


def test_a_broken_cause_file_does_not_make_its_trees_wrong(tmp_path: Path) -> None:
    (problem,) = refused(write_content(tmp_path, cause="causes: ["))
    assert "causes/neighbours.yaml" in problem


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tree/mine.yaml", 'unknown folder, did you mean "trees"?'),
        ("trees/mine.yml", "files of trees end in .yaml; rename it to mine.yaml"),
        ("pages/mine.yaml", "files of pages end in .md"),
    ],
)
def test_a_file_that_would_silently_not_be_read_is_told(tmp_path: Path, path: str, message: str) -> None:
    put(tmp_path / path, "x: 1\n")
    (problem,) = refused(tmp_path)
    assert message in problem


def test_a_folder_that_is_not_there_is_refused_with_the_setting_that_names_it(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path / "nowhere")
    assert problem == f"{tmp_path / 'nowhere'}: no such folder; make it, or correct `content` of the settings"


def test_two_objects_of_one_name_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_content(tmp_path)
    put(tmp_path / "trees/again.yaml", TREE)
    problems = refused(tmp_path)
    assert any("tree neighbours: defined already in" in problem for problem in problems)


def test_an_alert_of_ones_own_may_have_a_sentence_instead_of_a_tree(tmp_path: Path) -> None:
    write_content(tmp_path, tree=None, cause=None, page=None, policy=None)
    put(tmp_path / "no_tree.yaml", "NodeStepsSlow: look at the host's other tenants\n")
    assert load_content([tmp_path]).no_tree["NodeStepsSlow"] == "look at the host's other tenants"


def test_doubtful_content_loads_with_a_warning(tmp_path: Path) -> None:
    write_content(tmp_path, tree=TREE.replace("[NodeStepsSlow]", "[NodeStepsSlow, HostBusy]"))
    put(tmp_path / "pages/other.md", PAGE.replace("name: leave-host", "name: other"))
    warnings = [str(one) for one in load_content([tmp_path]).warnings]
    assert any("no rule here gives alert HostBusy" in one for one in warnings)
    assert any("noisy_neighbour is treated by leave-host, which comes before this page" in one for one in warnings)


def test_the_page_that_a_cause_names_comes_before_one_that_only_lists_the_cause(tmp_path: Path) -> None:
    write_content(tmp_path, page=PAGE.replace("[noisy_neighbour]", "[noisy_neighbour, slow_node, long_prompts]"))
    content = load_content([tmp_path])

    chosen = {cause: content.page_for_cause(cause) for cause in ("slow_node", "long_prompts", "downstream")}
    assert {cause: page.name if page else None for cause, page in chosen.items()} == {
        "slow_node": "replace-node",
        "long_prompts": "leave-host",
        "downstream": None,
    }
