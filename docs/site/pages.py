"""Hooks of MkDocs that make the pages of the site out of what the repository holds; see mkdocs.yml.

Markdown files are written for readers of the repository. Here their links are led to the pages of the site, and to
copies of source files. A page for each method, and the reference, are made from sources and docstrings, without
importing the package."""
from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
LINKED_TEXT = re.compile(r"(?<!!)\[(?P<text>[^]]+)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?:#[^)\s]*)?\)")
FENCE = re.compile(r"^```(?P<language>\w+) (?P<about>[^\n`]+)$", re.M)
# Folder of the copies of source files.
COPIES = "files"
# Page -> its title, and the names whose docstrings it shows.
REFERENCE = {
    "reference/python.md": ("Python", [
        "python_api.run", "python_api.load_result", "python_api.plan", "python_api.sweep", "python_api.list_methods",
        "result.Result", "errors.FedmpiError", "errors.BadInput", "errors.StorageError", "errors.CallbackError"]),
    "reference/authors.md": ("For authors of methods", [
        "method.Method", "client_data.ClientData", "client_data.BatchGradient", "models.flat.Model", "comm.rows.Rows",
        "method.Participants", "method.VectorKind", "server_only.Reach", "testing.report.check_method",
        "testing.report.ContractReport"])}
# Modules of the sections of a configuration.
SECTIONS = ("config/schema", "config/train", "config/evaluation", "faults", "edge", "participation")
# Words with which a paragraph of a method's docstring begins.
PARTS = re.compile(r"^(Objective:|Client|Server|New clients\.|Departures\.|Defaults\.)(?=\W)", re.M)
# Types of settings that have a name of their own, and ranges, as a reader knows them.
KINDS = {"PassCount": "int"}
RANGES = {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all pages that do not stand in docs/ as they are, and the source files to which pages link.

    The pages of methods and results are listed in the navigation, which MkDocs builds after this."""
    pages, methods = list_pages(), describe_methods()
    copied: set[str] = set()
    texts = {place: rewrite(source, pages, copied) for source, place in pages.items()}
    texts |= methods | describe_reference()
    results = [place for place in pages.values() if place.startswith("jobs/results/")]
    more = {"Methods": methods, "Results": sorted(results, key=lambda place: (place.count("/"), place))}
    for section in config.nav or []:
        for title in section.keys() & more.keys():
            section[title].extend(more[title])
    for place, text in texts.items():
        if (old := files.get_file_from_path(place)) is not None:
            files.remove(old)
        files.append(File.generated(config, place, content=text))
    for path in sorted(copied):
        files.append(File.generated(config, copy_of(path), abs_src_path=str(ROOT / path)))
    return files


def list_pages() -> dict[str, str]:
    """Return the Markdown files of the repository: path -> place in the site."""
    found = {"README.md": "index.md", "slurm/README.md": "slurm.md"}
    found |= {name: name.lower() for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
    found |= {f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    results = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "jobs").rglob("README.md")))
    return found | {path: path.replace("README.md", "index.md") for path in results}


def copy_of(path: str) -> str:
    """Return where a file of the repository stands in the site, without the dot that would hide it.

    A picture of a results page stays beside it."""
    return path if path.startswith("jobs/") else f"{COPIES}/{path.removeprefix('.')}"


def rewrite(source: str, pages: dict[str, str], copied: set[str]) -> str:
    """Return a Markdown file as a page: its links lead to pages or to copies, which are added to `copied`.

    A link to a folder becomes plain text. Words behind the language of a code block become its title if they name a
    file, else they are left out."""
    folder, here = posixpath.dirname(source), posixpath.dirname(pages[source])

    def find(path: str) -> str:
        return posixpath.normpath(posixpath.join(folder, path))

    def lead(match: re.Match[str]) -> str:
        path, anchor = find(match["path"]), match["anchor"] or ""
        if path in pages:
            return posixpath.relpath(pages[path], here or ".") + anchor
        copied.add(path)
        return posixpath.relpath(copy_of(path), here or ".")

    def unlink(match: re.Match[str]) -> str:
        return match["text"] if (ROOT / find(match["path"])).is_dir() else match[0]

    def head(match: re.Match[str]) -> str:
        named = "." in match["about"]
        return f'```{match["language"]} title="{match["about"]}"' if named else f"```{match['language']}"
    text = LINKED_TEXT.sub(unlink, (ROOT / source).read_text())
    return FENCE.sub(head, LINK.sub(lead, text))


def describe_methods() -> dict[str, str]:
    """Return the pages of all methods, from their docstrings, settings and sources, and the page that lists them."""
    rows, pages = [], {}
    for path in sorted((ROOT / "fedmpi" / "methods").glob("[!_]*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        about, _, more = (ast.get_docstring(tree) or "").partition("\n")
        # The method is the last class that has a title.
        *_, (title, described) = [("", path.stem), *find_titled(tree)]
        rows.append(f"| [`{path.stem}`]({path.stem}.md) | {title} | {about} |")
        pages[f"methods/{path.stem}.md"] = "\n\n".join([
            f"# {title}", f"`method={path.stem}`", about, set_apart(more), "## Settings", described,
            f"## Source\n\n```python title=\"fedmpi/methods/{path.name}\"\n{source}```"]) + "\n"
    head = "# Methods\n\n| setting | method | source |\n|---|---|---|\n"
    return {"methods/index.md": head + "\n".join(rows) + "\n"} | pages


def set_apart(text: str) -> str:
    """Return the text of a docstring with paragraphs for its parts, and with formulas as blocks of code."""
    return re.sub(r"((?:^ {4}.*\n)+)", r"\n\1\n", PARTS.sub(r"\n**\1**", text), flags=re.M)


def find_titled(tree: ast.Module) -> list[tuple[str, str]]:
    """Return the title and the table of settings of each class of a module that has a title."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            titles = [item.value.value for item in node.body if isinstance(item, ast.Assign)
                      and isinstance(item.value, ast.Constant) and ast.unparse(item.targets[0]) == "title"]
            found += [(str(title), tabulate_settings(node)) for title in titles]
    return found


def tabulate_settings(node: ast.ClassDef) -> str:
    """Return the fields of a class of settings as a table: name, type and range, default, help."""
    rows = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and ast.unparse(item.annotation).startswith("Annotated["):
            assert isinstance(item.annotation, ast.Subscript) and isinstance(item.annotation.slice, ast.Tuple)
            kind, *marks = item.annotation.slice.elts
            help_text = "; ".join(str(mark.value) for mark in marks if isinstance(mark, ast.Constant))
            ranges = [f"{RANGES[mark.func.id]} {ast.unparse(mark.args[0])}" for mark in marks
                      if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id in RANGES]
            shown = ", ".join([f"`{KINDS.get(ast.unparse(kind), ast.unparse(kind))}`", *ranges])
            default = f"`{ast.unparse(item.value)}`" if item.value else ""
            rows.append(f"| `{ast.unparse(item.target)}` | {shown} | {default} | {help_text} |")
    head = "| setting | type | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) if rows else "It has no settings of its own."


def describe_reference() -> dict[str, str]:
    """Return the pages of the Python interface and of the sections of a configuration."""
    pages = {place: f"# {title}\n\n" + "\n\n".join(f"::: fedmpi.{name}" for name in names) + "\n"
             for place, (title, names) in REFERENCE.items()}
    trees = [ast.parse((ROOT / "fedmpi" / f"{name}.py").read_text()) for name in SECTIONS]
    tables = [f"## {title}\n\n{table}" for tree in trees for title, table in find_titled(tree)]
    return pages | {"reference/settings.md": "# Settings\n\n" + "\n\n".join(tables) + "\n"}
