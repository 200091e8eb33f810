"""Build the wheel and the source distribution, check what is in them, install the wheel and use it; `make dist`.

The environment is new, and heedful comes from the wheel alone; its dependencies are those of the environment that runs
this, by their path, because a second torch would take minutes. `make matrix` installs everything anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heedful"
MAX_BYTES = 400_000
"""No file of the package is as large as a corpus."""
SMOKE = """
from heedful.data import Mock, RandomEmbeddings, Words
from heedful.models import Additive, Attentive, BiLSTM
from heedful.training import Adam, TrainedModel, Training
from heedful.trials import Permutation

def recipes():
    corpus = Mock(informative=2, strength=3.0, shortest=4, longest=8, train=60, dev=20, test=20)
    fit = Training(epochs=2, batch_size=16, optimizer=Adam(lr=0.005))
    embeddings = RandomEmbeddings(8)
    return [Permutation(TrainedModel(corpus, Words(), Attentive(BiLSTM(4), Additive()), fit, embeddings=embeddings))]
"""

REFUSE_SOCKETS = """
import socket, sys
def refuse(*arguments, **options):
    sys.stderr.write(f"network: {arguments}\\n")
    sys.stderr.flush()
    import os
    os._exit(97)
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""
"""Ends the process with code 97 when it is about to speak to another machine; no library can pass over that."""
TINY_MODEL = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "film", "is", "fine", "dull", "very", "plot"]
own = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
own.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
torch.manual_seed(0)
sizes = {"vocab_size": 13, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(**sizes, initializer_range=0.5, num_labels=2))
model.config.id2label = {0: "dull", 1: "fine"}
model.save_pretrained("tiny")
PreTrainedTokenizerFast(tokenizer_object=own, **names).save_pretrained("tiny")
"""
"""Writes a classifier with random weights into the folder `tiny`."""


def check(holds: object, message: str) -> None:
    """End with the message unless the condition holds."""
    if not holds:
        sys.exit(f"distribution: {message}")


def build(out: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"the build failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def package_files() -> set[str]:
    """What the wheel must hold: every file of the package that is under version control."""
    listed = subprocess.run(["git", "ls-files", "src/heedful"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.removeprefix("src/") for name in listed.stdout.split() if (ROOT / name).exists()}


def check_contents(wheel: Path, archive: Path) -> None:
    """The wheel is the package and nothing else; neither holds tests, data or large files."""
    with zipfile.ZipFile(wheel) as opened:
        sizes = {each.filename: each.file_size for each in opened.infolist()}
    own = {name for name in sizes if ".dist-info/" not in name}
    check(own == package_files(), f"the wheel differs from the package in {sorted(own ^ package_files())}")
    with tarfile.open(archive) as opened_archive:
        members = {
            member.name.partition("/")[2]: member.size for member in opened_archive.getmembers() if member.isfile()
        }
    wanted = {"pyproject.toml", "README.md", "LICENSE", *(f"src/{name}" for name in own)}
    check(wanted <= members.keys(), f"the source distribution lacks {sorted(wanted - members.keys())}")
    top = {name.partition("/")[0] for name in members}
    known = {"src", "MANIFEST.in", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "setup.cfg"}
    check(top <= known, f"the source distribution also holds {sorted(top - known)}")
    large = [name for name, size in {**sizes, **members}.items() if size > MAX_BYTES]
    check(not large, f"large files: {large}")


def install(wheel: Path, folder: Path) -> Path:
    """The folder of programs of a new environment with the wheel, and the dependencies of this one behind it."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True)
    # A path of a .pth file comes last, and the .pth files behind it, such as that of an editable install, are not read.
    (packages,) = folder.glob("lib/python*/site-packages") if os.name != "nt" else folder.glob("Lib/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def use(programs: Path, folder: Path) -> None:
    """The commands of the installed wheel, in a folder without the sources."""
    (folder / "smoke.py").write_text(SMOKE)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HEEDFUL_DATA")}

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(programs / words[0]), *words[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        check(done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    place = run("python", "-c", "import heedful; print(heedful.__file__)").strip()
    check(Path(place).is_relative_to(programs.parent), f"heedful was imported from {place}, not from the wheel")
    check(run("heedful", "--version").startswith("heedful "), "--version")
    check("audit" in run("heedful", "--help"), "--help")
    check("permutation" in run("heedful", "run", "smoke.py", "--where", "here"), "a trial")
    run("heedful", "report")
    run("python", "-c", TINY_MODEL)
    explain = ["explain", "tiny", "the film is very fine", "--method", "leave-one-out"]
    program = f"{REFUSE_SOCKETS}\nsys.argv = {['heedful', *explain]!r}\nfrom heedful.cli import main\nmain()"
    check("film" in run("python", "-c", program), "an explanation, and no connection to another machine")
    page = (folder / "report" / "index.html").read_text()
    check("Permutation" in page or "permutation" in page, "the report")


def main() -> None:
    """Everything, with a line about it; with a folder as argument the two files are left there."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name) / "dist"
        out.mkdir(parents=True, exist_ok=True)
        for old in (*out.glob("*.whl"), *out.glob("*.tar.gz")):
            old.unlink()
        wheel, archive = build(out)
        check_contents(wheel, archive)
        work = Path(name) / "work"
        work.mkdir()
        use(install(wheel, Path(name) / "environment"), work)
        sizes = ", ".join(f"{each.name} {each.stat().st_size // 1000} kB" for each in (wheel, archive))
        sys.stdout.write(f"{sizes}: contents as expected, installed and used in a new environment\n")


if __name__ == "__main__":
    main()
