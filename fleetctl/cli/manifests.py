"""`manifests`: what a cluster is given, in a folder of the user's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import output as out
from fleetctl.cli.alerts_export import Format, kubernetes_objects, write_files
from fleetctl.kit.errors import BadInputError

DEPLOY = Path(__file__).parents[1] / "deploy"
MONITORING = Path("helm/fleetctl/monitoring")
LIST = "kustomization.yaml"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def manifests(
        folder: Annotated[Path, typer.Argument(help="Where they go; it is made when it is not there.")],
        label: Annotated[
            list[str] | None,
            typer.Option(
                "--label", metavar="NAME=VALUE", help="Of rules and dashboards, as release=prometheus. Repeatable."
            ),
        ] = None,
        overwrite: Annotated[
            bool, typer.Option("--overwrite", help="Replace our files in a folder that has some already.")
        ] = False,
    ) -> None:
        """Write manifests for Kubernetes: kustomize overlays and a Helm chart, with the rules in force.

        Keep what you change in an overlay, or a values file, of your own: --overwrite brings a newer release's files.
        """
        if folder.exists() and any(folder.iterdir()) and not overwrite:
            raise BadInputError(f"{folder} is not empty", remedy="another folder, or --overwrite for a newer release")
        objects = dict(kubernetes_objects(None, label or [], dashboards=True))
        try:
            shutil.copytree(DEPLOY, folder, dirs_exist_ok=True)
            _exchange_objects(folder / MONITORING, sorted(f"{name}.{Format.yaml}" for name in objects))
        except OSError as error:
            raise BadInputError(f"{folder}: {error.strerror}", remedy="a folder that this user can write") from error
        write_files(objects, folder / MONITORING, Format.yaml)
        out.stdout().print(f"kubectl apply -k {folder}/kustomize/overlays/small    # or ha, attach", markup=False)
        out.stdout().print(f"helm install fleetctl {folder}/helm/fleetctl          # or this", markup=False)


def _exchange_objects(folder: Path, names: list[str]) -> None:
    """Those of the release go, as the user's content may have others; kustomize is told which there are."""
    for path in folder.glob("fleetctl-*.yaml"):
        path.unlink()
    head = (folder / LIST).read_text("utf-8").partition("resources:\n")[0]
    (folder / LIST).write_text(head + "resources:\n" + "".join(f"  - {name}\n" for name in names), "utf-8")
