"""An authority of the tests' own, and certificates that it has signed, by the openssl that is installed."""

import subprocess
from pathlib import Path


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: S607 - as it is installed


def make_certificates(folder: Path) -> Path:
    """Return `folder` with an authority, and with a certificate of a server and of a client that it has signed."""
    uses = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(
        folder, *new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", *uses
    )
    (folder / "names").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n", encoding="utf-8"
    )
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    for name in ("server", "client"):
        openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("server.key", "server.pem", "ca.pem")]
    (folder / "server-store.pem").write_text("".join(parts), encoding="utf-8")
    return folder
