"""fedmpi may be imported through a symbolic link, as home folders on clusters often are one."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fedmpi


def test_its_code_is_not_the_users_own(tmp_path):
    """Nor does it matter what the folder is called that the link leads to."""
    package = shutil.copytree(Path(fedmpi.__file__).parent, tmp_path / "fedmpi-0.2",
                              ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "fedmpi").symlink_to(package)
    code = ("import fedmpi; from fedmpi.own_code import places; from pathlib import Path\n"
            "print(fedmpi.__file__, places.is_library(Path(fedmpi.__file__)), places.is_built_in(fedmpi.BadInput))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)}, check=True)
    assert done.stdout.split() == [str(tmp_path / "fedmpi" / "__init__.py"), "True", "True"]
