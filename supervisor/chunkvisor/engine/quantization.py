"""The model in int8 (`model.dtype: int8`): quantised once, on texts of the run, and kept in the workdir.

Two calibrations give other vectors. So what tells such a model apart is the digest of its files, and of what a worker
is told beside them: it is in the identity of the outputs that it makes, and in the name of its folder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from chunkvisor.decide.likeness import likeness
from chunkvisor.engine.conversion import (
    NAME_LENGTH,
    content_holds,
    ingredients,
    installed_version,
    made_in,
    place_of,
)
from chunkvisor.store.seal import digest_of
from chunkvisor_worker.contract.arithmetic import Quantized
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, TextSample
from chunkvisor_worker.contract.files import copy_atomic, make_folder, open_regular, remove_folder
from chunkvisor_worker.contract.layershapes import LayerShapes
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

MOST_TEXTS = 400
"""Of a run, from which the child takes those to calibrate with and those to compare."""

LEAST_COSINE = 0.98
"""To float32: of vectors that are farther from it, the person is warned."""


def nncf_version() -> str | None:
    """Of the package that is installed; None = it is not."""
    return installed_version("nncf")


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts of an output."""

    encode: EncodeSpec
    texts: Sequence[str]


def ensure_quantized(
    model: ModelSpec,
    folder: Path,
    samples: Sequence[Sample],
    environment: Mapping[str, str],
    on_wait: Callable[[], None] = lambda: None,
    tell: Callable[[], None] = lambda: None,
    check: Callable[[], None] = lambda: None,
    wanted: str | None = None,
) -> str:
    """Have the model quantised on these texts, in the folder of all converted models; returns the digest of its files.

    Where one is there that was made of the same, it is taken, unless another one is `wanted`. Else as
    `ensure_converted`.
    """
    of_texts = [[asdict(sample.encode), digest_of(list(sample.texts))] for sample in samples]
    made_from = digest_of([*ingredients(model), nncf_version(), model.max_length, of_texts])
    for path in sorted(folder.glob(f"*/{ConvertedFiles(folder).record.name}")):
        known, found = read_message(Converted, path), path.parent.name
        same = known is not None and known.made_from == made_from and wanted in (None, found)
        if same and is_whole(folder, found, on_wait):
            return found
    tell()
    texts = chain.from_iterable(sample.texts for sample in samples)
    counts = [TextSample(sample.encode, len(sample.texts)) for sample in samples]
    with made_in(folder, model, made_from, environment, on_wait, texts, counts) as made:
        check()
        names = _names(_finish(made))
        digest = wanted if wanted in names else names[0]
        target = place_of(folder, digest)
        remove_folder(target)
        made.folder.rename(target)
    return digest


def is_whole(folder: Path, digest: str, on_wait: Callable[[], None] = lambda: None) -> bool:
    """Whether the model with that digest is in the folder of all."""
    files = ConvertedFiles(place_of(folder, digest))
    known = read_message(Converted, files.record)
    return known is not None and digest in _names(known) and content_holds(files, known, on_wait)


def read_quantized(folder: Path, digest: str) -> Quantized | None:
    """What is told of it; None where it is not there."""
    known = read_message(Converted, ConvertedFiles(place_of(folder, digest)).record)
    return known.quantized if known is not None else None


def adopt(theirs: Path, folder: Path, digest: str, on_wait: Callable[[], None]) -> bool:
    """Copy the model with that digest from another workdir's folder; False where it is not whole there.

    Raises OSError.
    """
    if not is_whole(theirs, digest, on_wait):
        return False
    there, here = ConvertedFiles(place_of(theirs, digest)), ConvertedFiles(place_of(folder, digest))
    for path in (folder, here.folder):
        make_folder(path, durable=False)
    for source, target in zip((*there.content, there.record), (*here.content, here.record), strict=True):
        on_wait()
        copy_atomic(source, target)
    return True


def _names(known: Converted) -> tuple[str, str]:
    """Its digest, of all that its vectors depend on; and that of its files alone, by which it was known before."""
    told = replace(known, made_from="", difference=0.0, versions={}, layers=LayerShapes(), quantized=None)
    return digest_of(asdict(told))[:NAME_LENGTH], digest_of(known.digests)[:NAME_LENGTH]


def _finish(made: ConvertedFiles) -> Converted:
    """Note how near its vectors are to those of float32. Raises OSError."""
    known = read_message(Converted, made.record)
    assert known is not None
    assert known.quantized is not None
    with open_regular(made.compared) as file:
        reference, vectors = np.load(file, allow_pickle=False)
    alike = likeness(vectors, reference)
    write_message(made.record, replace(known, quantized=replace(known.quantized, **asdict(alike))), durable=False)
    made.compared.unlink()
    return known
