"""Who embeds a file fastest on this CPU.

Chunkvisor, other programs, and bare loops, on the same texts in turn.

    python benchmarks/peers.py [--commits commits.jsonl.gz] [--rows 4000] [--repeat 3] [--only WORD …] [--json FILE]

Every peer is a process of its own, from start to saved vectors, and is told where its model lies in
the form that it wants: converting is not in its time. It has the setting that was fastest on an
eighth of the texts. `--peers` names the interpreter of those that are not in chunkvisor's
environment (`make bench-peers` makes it); who is not there is left out.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import yaml
from corpus import ensure_model, read_texts
from machine import machine
from measured import CHUNKVISOR, FailedError, took
from tokens import computed

from chunkvisor.devices.gpu import has_bfloat16

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
PLAIN = "sentence-transformers, encode"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
BATCH_SIZES = tuple(("--batch-size", str(size)) for size in (8, 16, 32, 64))
REFUSED = "no bfloat16 on this CPU"


@dataclass
class Peer:
    """One line of the table."""

    name: str
    command: list[str]
    out: str
    """The file of its vectors, in the scratch folder."""
    settings: tuple[tuple[str, ...], ...] = ((),)
    """More arguments; the fastest of them is used."""
    workdir: str = ""
    """Of a run: emptied before each."""
    chosen: tuple[str, ...] = ()
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    largest_difference: float = 0.0
    least_cosine: float = 1.0
    computed: str = ""
    """Of a run: tokens and padding."""
    note: str = ""
    """Why it has no figures; empty = it has."""

    def leave_out(self, why: str) -> None:
        """By the last line of what it said."""
        self.note = (
            f"refused: {REFUSED}" if REFUSED in why else f"left out: {why.strip().splitlines()[-1]}"
        )
        self.wall_s.clear()


class Contest:
    """The peers in a scratch folder, with their texts and models."""

    def __init__(self, folder: Path, texts: list[str], peers_python: Path) -> None:
        self.folder, self.texts = folder, texts
        self.model, self.python = ensure_model().resolve(), peers_python
        self.write("texts", texts)
        self.write("sample", texts[::8])
        plain, loops = str(HERE / "plain.py"), str(HERE / "peerloops.py")
        ours, theirs = sys.executable, str(peers_python)
        model, texts_file = str(self.model), "texts.json"
        openvino_args = ("--backend", "openvino")
        pools = tuple((*size, "--pool", "2") for size in BATCH_SIZES[1:])
        torch_bfloat16 = self.run("chunkvisor, bfloat16", "bfloat16")
        if not has_bfloat16():
            # torch computes it all the same, in six times the time of float32
            torch_bfloat16.leave_out(REFUSED)
        self.peers = [
            Peer(PLAIN, [ours, plain, model, texts_file, "plain.npy"], "plain.npy"),
            Peer(
                f"{PLAIN}, best batch",
                [ours, plain, model, texts_file, "best.npy"],
                "best.npy",
                BATCH_SIZES,
            ),
            Peer(
                "sentence-transformers, pool of 2",
                [ours, plain, model, texts_file, "pool.npy"],
                "pool.npy",
                pools,
            ),
            Peer(
                "sentence-transformers, openvino",
                [theirs, plain, "openvino", texts_file, "ov.npy", *openvino_args],
                "ov.npy",
                BATCH_SIZES,
            ),
            Peer(
                "FastEmbed",
                [theirs, loops, "fastembed", "onnx", texts_file, "fe.npy"],
                "fe.npy",
                (*BATCH_SIZES[:3], *pools[:2]),
            ),
            Peer(
                "bare loop, torch",
                [ours, loops, "torch", model, texts_file, "bare.npy"],
                "bare.npy",
            ),
            self.run("chunkvisor", "auto"),
            torch_bfloat16,
        ]

    def write(self, name: str, texts: list[str]) -> None:
        """The texts as each side reads them."""
        (self.folder / f"{name}.json").write_text(json.dumps(texts))
        (self.folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )

    def run(self, name: str, dtype: str) -> Peer:
        """`chunkvisor run` with a config of its own."""
        work = f"work-{dtype}"
        config = {
            "workdir": work,
            "device": "cpu",
            "model": {"name": str(self.model), "dtype": dtype},
            "outputs": {"out": {"source": "texts.jsonl", "column": "text"}},
        }
        (self.folder / f"{work}.yaml").write_text(yaml.safe_dump(config))
        return Peer(name, [*CHUNKVISOR, "run", f"{work}.yaml"], f"{work}/out.npy", workdir=work)

    def prepare(self, peer: Peer) -> None:
        """Convert its model, if it wants that, and find its setting.

        `note` says why it is left out.
        """
        try:
            self.convert(peer)
            times: dict[tuple[str, ...], float] = {}
            for setting in peer.settings if len(peer.settings) > 1 else ():
                sampled = ["sample.json" if word == "texts.json" else word for word in peer.command]
                times[setting] = took([*sampled, *setting], self.folder, OFFLINE).seconds
                say(
                    f"{peer.name}: {' '.join(setting)}: {times[setting]:.1f} s for "
                    f"{len(self.texts[::8])} texts"
                )
            peer.chosen = min(times, key=lambda each: times[each]) if times else ()
        except FailedError as error:
            peer.leave_out(str(error))

    def convert(self, peer: Peer) -> None:
        """The form of the model that is in its command, in the scratch folder.

        Raises FailedError.
        """
        if str(self.python) in peer.command:
            form = "onnx" if "onnx" in peer.command else "openvino"
            if not self.python.exists():
                raise FailedError(f"{form}: there is no {self.python}; `make bench-peers` makes it")
            if not (self.folder / form).exists():
                script = [str(self.python), str(HERE / "peerforms.py"), form, str(self.model), form]
                say(
                    f"{peer.name}: model made in {took(script, self.folder, OFFLINE).seconds:.1f} "
                    f"s, not counted"
                )

    def measure(self, peer: Peer) -> None:
        """One run of it."""
        if peer.workdir:
            shutil.rmtree(self.folder / peer.workdir, ignore_errors=True)
        found = took([*peer.command, *peer.chosen], self.folder, OFFLINE)
        peer.wall_s.append(found.seconds)
        peer.cpu_s.append(found.used_s)
        mine, plain = np.load(self.folder / peer.out), np.load(self.folder / self.peers[0].out)
        peer.largest_difference = max(peer.largest_difference, float(np.abs(mine - plain).max()))
        lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(plain, axis=1)
        peer.least_cosine = min(
            peer.least_cosine, float((np.einsum("ij,ij->i", mine, plain) / lengths).min())
        )
        say(f"{peer.name}: {found.seconds:.1f} s, {found.used_s:.1f} CPU s")
        if peer.workdir:
            peer.computed = computed(self.folder / peer.workdir)
            say(f"{peer.name}: {peer.computed}")


def table(peers: list[Peer], texts: int) -> list[str]:
    """Lines of a table in Markdown."""
    plain_s = statistics.median(peers[0].wall_s)
    lines = [
        "| peer | setting | wall, s | of plain | CPU, s | texts/s | largest difference | least "
        "cosine |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for peer in peers:
        setting = " ".join(peer.chosen).replace("--", "")
        if not peer.wall_s:
            lines.append(f"| {peer.name} | {peer.note} | | | | | | |")
            continue
        wall_s, cpu_s = statistics.median(peer.wall_s), statistics.median(peer.cpu_s)
        lines.append(
            f"| {peer.name} | {setting} | {wall_s:.1f} | {wall_s / plain_s:.2f} | {cpu_s:.1f} | "
            f"{texts / wall_s:.0f} "
            f"| {peer.largest_difference:.1e} | {peer.least_cosine:.6f} |"
        )
    return lines


def say(words: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")


def main() -> None:
    """Prepare, measure in rounds, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--commits", type=Path, help="JSON lines (.gz) with subject and body; else docstrings"
    )
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="peers with one of these words in their name, and plain",
    )
    parser.add_argument(
        "--peers", type=Path, default=PEERS, help="their interpreter (default: %(default)s)"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/peers.json"), help="(default: %(default)s)"
    )
    options = parser.parse_args()
    texts = read_texts(options.commits, options.rows, distinct=True)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-peers-") as name:
        contest = Contest(Path(name), texts, options.peers.absolute())
        wanted = [
            each
            for each in contest.peers
            if not options.only or any(word in each.name for word in options.only)
        ]
        peers = [contest.peers[0], *(each for each in wanted if each is not contest.peers[0])]
        for peer in peers:
            contest.prepare(peer)
        for _ in range(options.repeat):
            for peer in peers:
                if peer.note:
                    continue
                try:
                    contest.measure(peer)
                except FailedError as error:
                    if peer is peers[0]:
                        raise
                    peer.leave_out(str(error))
    facts = {
        **machine(options.peers.absolute()),
        "command": " ".join(sys.argv),
        "texts": len(texts),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {key: value for key, value in asdict(peer).items() if key not in ("command", "out")}
        for peer in peers
    ]
    options.json.write_text(json.dumps({**facts, "peers": rows}, indent=1))
    print("\n".join(table(peers, len(texts))))
    print("\n" + "\n".join(f"{key}: {value}" for key, value in facts.items()))


if __name__ == "__main__":
    main()
