"""What the fingerprint of the user's own code consists of."""
from __future__ import annotations

import functools
import importlib
import py_compile
import sys
import zipfile

import pytest
from torch import nn

from fedmpi.config.own_parts import fingerprint_code
from fedmpi.config.schema import resolve
from fedmpi.errors import BadInput
from fedmpi.own_code import fingerprint
from fedmpi.own_code.changes import list_changes, refuse_other_code
from fedmpi.own_code.fingerprint import hash_own_code
from tests.own_code.modules import write

TREE = {"mine/__init__.py": "", "mine/method.py": "from .parts import a\nfrom mine.parts.b import c\n"
        "import os, torch\ndef later():\n    import mine.late\nclass Own:\n    pass\n",
        "mine/parts/__init__.py": "", "mine/parts/a.py": "",
        "mine/parts/b.py": "from ..deep import *\nc = 1", "mine/deep.py": "import fedmpi.cli\nimport mine.method",
        "mine/late.py": "", "mine/unused.py": "", "beside.py": "", "__init__.py": ""}


def hashed(module: str) -> dict:
    return hash_own_code([importlib.import_module(module).Own])


def test_files_that_are_imported_count_transitively_and_others_do_not(place):
    write(place, TREE)
    assert set(hashed("mine.method")) == {"mine", "mine.method", "mine.parts", "mine.parts.a", "mine.parts.b",
                                          "mine.deep", "mine.late"}


def test_dots_in_a_script_of_no_package_lead_to_no_other_folder(place):
    write(place, {"mine_script.py": "try:\n    from . import mine_helper\nexcept ImportError:\n    pass\nclass Own:\n"
                  "    pass\n", "mine_helper.py": "", "__init__.py": ""})
    beside = place.with_name(f"{place.name}.py")
    beside.touch()
    assert set(hashed("mine_script")) == {"mine_script", "mine_helper"}
    beside.unlink()


def test_bases_in_other_folders_count(place, monkeypatch):
    write(place, {"mine_child.py": "import sys\nfrom mine_base import Base\nclass Own(Base):\n    pass\n",
                  "other/mine_base.py": "class Base:\n    pass\n"})
    monkeypatch.syspath_prepend(str(place / "other"))
    assert set(hashed("mine_child")) == {"mine_child", "mine_base"}


def test_of_an_installation_only_the_package_itself_counts(place, monkeypatch):
    files = {f"site/{name}": text for name, text in TREE.items()} | {"site/mine_other/__init__.py": "",
                                                                     "site/mine-1.dist-info/METADATA": "Version: 7"}
    files["site/mine/deep.py"] = "import mine_other, beside"
    write(place, files)
    monkeypatch.syspath_prepend(str(place / "site"))
    monkeypatch.setattr(fingerprint, "version", lambda package: "7")
    # A library counts by its version; a plug-in of fedmpi as the user's own code.
    assert hashed("mine.method") == {"mine": "version 7"}
    for module in ("fingerprint", "places"):
        monkeypatch.setattr(f"fedmpi.own_code.{module}.list_plug_ins", lambda: {"mine"})
    assert {name.partition(".")[0] for name in hashed("mine.method")} == {"mine"} and len(hashed("mine.method")) == 7


def test_what_has_no_text_counts_by_its_bytes_or_is_unknown(place, monkeypatch):
    write(place, {"mine_text.py": "class Own:\n    pass\n"})
    with zipfile.ZipFile(place / "mine.zip", "w") as archive:
        archive.writestr("mine_zipped.py", "class Own:\n    pass\n")
    monkeypatch.syspath_prepend(str(place / "mine.zip"))
    assert hashed("mine_zipped") == {"mine_zipped": fingerprint.hash_file(place / "mine.zip")}
    py_compile.compile("mine_text.py", cfile="mine_compiled.pyc")
    assert hashed("mine_compiled") == {"mine_compiled": fingerprint.hash_file(place / "mine_compiled.pyc")}
    in_notebook = type("Own", (), {"__module__": "__main__"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert hash_own_code([in_notebook]) == {"__main__": None}
    assert list_changes({"__main__": None}, {"__main__": None}, 1) == []
    refuse_other_code({"__main__": None}, {"__main__": None})


def test_of_a_script_the_script_counts(place, monkeypatch):
    write(place, {"script.py": "import mine_helper", "mine_helper.py": ""})
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(place / "script.py"), raising=False)
    assert set(hash_own_code([type("Own", (), {"__module__": "__main__"})])) == {"__main__", "mine_helper"}


def test_functions_partials_and_libraries(place):
    write(place, {"mine_net.py": "def make() -> 'nn.Module':\n    pass\n"})
    make = importlib.import_module("mine_net").make
    assert set(hash_own_code([functools.partial(make)])) == set(hash_own_code([make])) == {"mine_net"}
    assert hash_own_code([nn.Linear])["torch"].startswith("version 2")
    assert fingerprint_code(resolve({"model": "torch.nn:Linear"})).keys() == {"torch"}
    assert fingerprint_code(resolve({})) == {}


def test_a_file_that_was_changed_after_its_import_is_refused(place):
    write(place, {"mine_text.py": "class Own:\n    pass\n"})
    first = hashed("mine_text")
    (place / "mine_text.py").write_text("class Own:\n    lam = 1\n")
    remedy = r"call importlib.reload\(mine_text\) and import the class again \(%autoreload is not enough\)$"
    with pytest.raises(BadInput, match=f"module mine_text was changed after this Python had imported it, .*{remedy}"):
        hashed("mine_text")
    importlib.reload(sys.modules["mine_text"])
    assert hashed("mine_text") != first
