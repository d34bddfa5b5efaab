"""fedmpi may be imported through a symbolic link, as home folders on clusters often are one."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fedmpi


def test_its_files_are_not_the_users_own_code(tmp_path):
    package = Path(fedmpi.__file__).resolve().parent
    (tmp_path / "fedmpi").symlink_to(package)
    code = ("import fedmpi; from fedmpi.own_code import places; from pathlib import Path\n"
            "print(fedmpi.__file__, places.PACKAGE, places.is_library(Path(fedmpi.__file__)))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=True)
    assert done.stdout.split() == [str(tmp_path / "fedmpi" / "__init__.py"), str(package), "True"]
