"""What tests of encrypted connections get: an authority of their own, and what it has signed."""

import shutil
from pathlib import Path

import pytest

from tests.certificates import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, and with a certificate of a server and of a client that it has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return make_certificates(tmp_path_factory.mktemp("certificates"))
