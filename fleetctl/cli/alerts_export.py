"""`alerts export`: the rules in force for a Prometheus or a Prometheus operator that shall evaluate them too."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli import output as out
from fleetctl.cli.context import current
from fleetctl.cli.output import print_data
from fleetctl.kit.errors import BadInputError


class Format(StrEnum):
    """How objects and rule files are written."""

    yaml = "yaml"
    json = "json"


def register_export(alerts: typer.Typer) -> None:
    """Add the command to the group of alerts."""

    @alerts.command()
    def export(
        kubernetes: Annotated[
            bool, typer.Option("--kubernetes", help="As PrometheusRule objects of the Prometheus operator.")
        ] = False,
        namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Of the objects.")] = None,
        label: Annotated[
            list[str] | None,
            typer.Option(
                "--label",
                "--labels",
                metavar="NAME=VALUE",
                help="Of the objects: what the operator selects rules by. Repeatable.",
            ),
        ] = None,
        dashboards: Annotated[
            bool, typer.Option("--dashboards", help="Our Grafana dashboards too: ConfigMaps with --kubernetes.")
        ] = False,
        to: Annotated[
            Path | None, typer.Option("--to", metavar="DIR", help="A file each in this folder, instead of stdout.")
        ] = None,
        output: Annotated[Format, typer.Option("--output", "-o", help="Of what is written.")] = Format.yaml,
    ) -> None:
        """Write signals and rules in force, ours and yours, for a Prometheus to evaluate.

        Without --kubernetes a folder of rule files, which `rule_files` of prometheus.yml names.
        """
        if not kubernetes and (namespace or label):
            raise BadInputError("--namespace and --label are of objects of Kubernetes", remedy="add --kubernetes")
        if not kubernetes and to is None:
            raise BadInputError("rule files need a folder", remedy="add --to DIR, or --kubernetes")
        files = (
            dict(kubernetes_objects(namespace, label or [], dashboards=dashboards))
            if kubernetes
            else dict(_rule_files(dashboards))
        )
        if to is not None:
            write_files(files, to, output)
            out.stderr().print(f"{len(files)} files in {to}", markup=False)
        elif output is Format.json:
            print_data({"apiVersion": "v1", "kind": "List", "items": list(files.values())}, out.Output.json)
        else:
            sys.stdout.write("---\n".join(_text(one, output) for one in files.values()))


def kubernetes_objects(
    namespace: str | None, labels: Sequence[str], *, dashboards: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each by its name. Raises BadInputError: a label that can't be one, content that can't be used."""
    from alerts.evaluation.builtin import builtin_dashboard_files
    from fleetctl.controller.content.load import load_content
    from fleetctl.controller.content.rule_export import (
        dashboard_config_map,
        exported_rules,
        parse_labels,
        prometheus_rule,
    )

    given = parse_labels(labels)
    made = [
        prometheus_rule(one, namespace=namespace, labels=given)
        for one in exported_rules(load_content(current().settings().content))
    ]
    if dashboards:
        made += [dashboard_config_map(path, namespace=namespace, labels=given) for path in builtin_dashboard_files()]
    for one in made:
        yield one["metadata"]["name"], one


def _rule_files(dashboards: bool) -> Iterator[tuple[str, Any]]:
    from alerts.evaluation.builtin import builtin_dashboard_files
    from fleetctl.controller.content.load import load_content
    from fleetctl.controller.content.rule_export import exported_rules

    for one in exported_rules(load_content(current().settings().content)):
        yield one.name, {"groups": one.groups}
    for path in builtin_dashboard_files() if dashboards else ():
        yield f"{path.stem}.json", path.read_text("utf-8")


def _text(data: Any, output: Format) -> str:
    from fleetctl.controller.content.rule_export import as_yaml

    if isinstance(data, str):  # a file as it is
        return data
    return as_yaml(data) if output is Format.yaml else json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def write_files(files: Mapping[str, Any], folder: Path, output: Format) -> None:
    """A file each; what is text already keeps its name. Raises BadInputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            path = folder / (name if isinstance(data, str) else f"{name}.{output}")
            path.write_text(_text(data, output), "utf-8")
    except OSError as error:
        raise BadInputError(f"{folder}: {error.strerror}", remedy="a folder that this user can write") from error
