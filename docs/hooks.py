"""Pages of the site that live elsewhere in the repository or are made, and links to them."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File
from typer.main import get_command
from typer.testing import CliRunner

from isotropy.cli import app

ROOT = Path(__file__).resolve().parent.parent
TOP = ("CONTRIBUTING.md", "CHANGELOG.md")
UP = re.compile(r"(\]\()(?:\.\./)+((?:results/(?:papers/(?:[\w-]+/)+)?)?[\w.-]+\.md)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)\)")


def on_config(config):
    """Enter every table of results/ in the navigation, under its own heading."""
    (section,) = (entry["Results"] for entry in config.nav if "Results" in entry)
    for page in sorted((ROOT / "results").glob("*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        section.append({title: f"results/{page.name}"})
    return config


def on_files(files, config):
    """Add results/ and two files of the root under their own names, and the commands."""
    results = (path for kind in ("md", "png") for path in (ROOT / "results").rglob(f"*.{kind}"))
    for path in [*(ROOT / name for name in TOP), *sorted(results)]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_bytes()))
    files.append(File.generated(config, "api/cli.md", content=command_line()))
    return files


def command_line():
    """What every command says of itself."""
    parts = ["# Command line\n\nWhat `isotropy --help` and `isotropy COMMAND --help` print."]
    for name in ("", *get_command(app).commands):
        told = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="isotropy").output
        title = f"## isotropy {name}\n\n" if name else ""
        parts.append(f"{title}```text\n{told.strip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown, page, config, files):
    """Links that lead out of docs/ when read in the repository stay within the site.

    A link to what is in the repository and not in the site, such as a folder, becomes its words.
    """
    uri = page.file.src_uri
    up = "../" * uri.count("/")

    def inside(link):
        known = files.get_file_from_path(link[2]) is not None
        return f"{link[1]}{up}{link[2]}" if known else link[0]

    def told(link):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(uri), link[2]))
        beyond = (ROOT / place).exists() and files.get_file_from_path(place) is None
        return link[1] if beyond else link[0]

    if not page.file.generated_by:
        return UP.sub(inside, markdown)
    return LINK.sub(told, UP.sub(inside, markdown.replace("](../docs/", "](../")))
