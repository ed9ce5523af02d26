"""Computes batches side by side on a CPU, each with few threads.

Threads that share a batch wait for each other at the end of every operation, and small operations have only one of
them at work. Threads with batches of their own do not wait: MiniLM on two cores takes 0.8 of the time.
"""

import importlib.util
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from chunkvisor_worker.contract.environment import BATCHES_AT_ONCE
from chunkvisor_worker.contract.lanecount import most_lanes
from chunkvisor_worker.encoder import Indices, Vectors

Wait: TypeAlias = Callable[[], Vectors]
"""Waits for a batch's vectors."""

_MOST_PRODUCTS = 160e9
"""Padded tokens of a batch times the model's weights, for each thread of its lane. A slow core does 20e9 a second, and
a batch may take 8 s: within a grace of 25 s, a worker that is asked to leave has to finish the batches under way and
the one that waits for a lane."""

STATELESS = frozenset(
    {
        *("bert", "camembert", "distilbert", "electra", "eurobert", "gemma3_text", "llama", "mistral", "modernbert"),
        *("mpnet", "nomic_bert", "qwen2", "qwen3", "roberta", "xlm-roberta"),
    }
)
"""Model types of transformers whose forward pass keeps nothing in the model, so that several may be under way."""
_THREAD_SAFE = "transformers.utils.output_capturing"
"""Before transformers 5 had it, what gathers a forward pass's outputs replaced methods of the model meanwhile."""
_CHANGING_ROPE = ("dynamic", "longrope")
"""Kinds of rotary position embeddings whose frequencies a forward pass changes."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many batches are computed at a time, and with how many threads each."""

    count: int = 1
    threads: int = 1
    ahead: int = 0
    """Batches that may be under way when another begins."""

    def compute(
        self, batches: Iterable[Indices], begins: Callable[[Indices], bool], start: Callable[[Indices], Wait]
    ) -> Iterator[tuple[Indices, Vectors]]:
        """The batches with their vectors, in their order.

        `begins` is told of each batch, by this thread; False ends the iteration with those under way. `start` starts
        to compute one, and what it returns waits for the vectors; it is called in a lane's thread where there are
        several lanes. A batch of one text has the machine to itself: so it gets through where there is memory for no
        more. Raises what `start` raises.
        """
        under_way: deque[tuple[Indices, Wait]] = deque()
        with self._opened() as submit:
            for indices in batches:
                alone = self.count > 1 and len(indices) == 1
                while alone and under_way:
                    yield _finished(under_way)
                if not begins(indices):
                    break
                under_way.append((indices, start(indices) if alone else submit(start, indices)))
                while len(under_way) > (0 if alone else self.ahead):
                    yield _finished(under_way)
            while under_way:
                yield _finished(under_way)

    @contextmanager
    def _opened(self) -> Iterator[Callable[[Callable[[Indices], Wait], Indices], Wait]]:
        if self.count == 1:
            yield lambda start, indices: start(indices)
            return
        import torch

        print(f"{self.count} batches at a time, threads for each: {self.threads}", flush=True)  # noqa: T201 - goes to the log
        pool = ThreadPoolExecutor(self.count, "lane", torch.set_num_threads, (self.threads,))
        try:
            yield lambda start, indices: pool.submit(lambda: start(indices)()).result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def weights_of(model: Any) -> int:
    """Numbers in the matrices that each token is multiplied with, about: embeddings are looked up, not multiplied."""
    return int(model.transformers_model.num_parameters(exclude_embeddings=True))


def lanes_for(threads: int, batches: int, products: float) -> Lanes:
    """For so many batches, the largest of which has so many products: its padded tokens times the model's weights."""
    least_threads = max(1, math.ceil(products / _MOST_PRODUCTS))
    count = most_lanes(threads // least_threads, batches, os.environ.get(BATCHES_AT_ONCE, ""))
    return Lanes(count, threads // count, count) if count > 1 else Lanes()


def is_stateless(model: Any) -> bool:
    """Whether several forward passes of this plain text model may be under way at once."""
    if importlib.util.find_spec(_THREAD_SAFE) is None:
        return False
    transformer = model.transformers_model
    rope_types = [getattr(module, "rope_type", None) for module in transformer.modules()]
    kinds = [kind for each in rope_types for kind in (each.values() if isinstance(each, dict) else [each])]
    return transformer.config.model_type in STATELESS and not any(
        changing in str(kind) for kind in kinds for changing in _CHANGING_ROPE
    )


def _finished(under_way: deque[tuple[Indices, Wait]]) -> tuple[Indices, Vectors]:
    indices, wait = under_way.popleft()
    return indices, wait()
