"""`rappor datasheet`: data sheet, impact assessment and consent texts from a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from rappor.cli.commands import command
from rappor.cli.console import print_json
from rappor.cli.options import json_option, option_field, refuse_options, registry_option
from rappor.privacy.consent_text import write_consent_texts
from rappor.privacy.impact_assessment import write_impact_assessment
from rappor.privacy.registry_datasheet import write_datasheet
from rappor.registry.registry import Registry

_DOCUMENTS: Final = {
    "datasheet": write_datasheet,
    "dpia": write_impact_assessment,
    "consent": write_consent_texts,
}
"""Function that writes each document from a registry, by the value of --paper."""


@command(
    "rappor datasheet --registry metrics.toml",
    "rappor datasheet --registry metrics.toml --paper consent",
    "rappor datasheet --registry metrics.toml --out papers",
)
def datasheet(
    *,
    registry_path: str = registry_option(),
    paper: str = option_field(
        list(_DOCUMENTS),
        "Document to print: the data sheet, the skeleton of a data protection impact assessment "
        "(dpia), or texts that ask people for consent.",
        default="datasheet",
    ),
    out: Path | None = option_field(
        "FOLDER",
        "Write all three documents into this folder, as Markdown and HTML, instead of printing.",
        type=click.Path(path_type=Path),
    ),
    as_json: bool = json_option(),
) -> None:
    """Write a data sheet, a DPIA skeleton and consent texts.

    The data sheet lists purpose and owner of each metric, the data fields of an upload, retention,
    recipients, privacy losses, properties that link reports, the effect of withdrawal, and known
    limits. Each document has a version, which is a hash of its content, so the same registry gives
    the same version. Texts that people have to write are marked [to be filled in]. The documents
    are not legal advice.
    """
    from rappor.reporting.papers import paper_markdown, paper_page

    if out is not None and not as_json:
        refuse_options("--out", "paper")
    registry = Registry.load(registry_path)
    documents = {name: build(registry) for name, build in _DOCUMENTS.items()}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (out / f"{name}.md").write_text(paper_markdown(document), encoding="utf-8")
            (out / f"{name}.html").write_text(paper_page(document), encoding="utf-8")
    if as_json:
        print_json(documents[paper])
    elif out is None:
        click.echo(paper_markdown(documents[paper]), nl=False)
    else:
        click.echo(f"{', '.join(documents)} are in {out}, as Markdown and HTML.")
