"""The repository around the course: one address, exact pins, a whole wheel, nothing that runs code unseen."""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from set_repository import main, read_address, set_repository

ROOT = Path(__file__).resolve().parents[2]


def files_that_git_would_take():
    """Return all files but the ignored ones; what was downloaded without git is asked in the same way."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", f"--git-dir={folder}", f"--work-tree={ROOT}"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        listing = [*git, "ls-files", "--others", "--exclude-standard"]
        names = subprocess.check_output(listing, cwd=ROOT, text=True).splitlines()
    return [ROOT / name for name in names]


FILES = files_that_git_would_take()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_every_part_is_there():
    names = """README.md CONTRIBUTING.md CHANGELOG.md LICENSE LICENSE-CC-BY Makefile pyproject.toml .ci/run
        requirements.txt _config.yml _toc.yml index.ipynb chapters/references.bib mha_lib/py.typed""".split()
    assert [name for name in names if not (ROOT / name).is_file()] == []
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    assert [page for page in pages if not list(ROOT.glob(f"{page}.*"))] == []
    # No page is written and then forgotten.
    written = {
        path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "chapters").glob("*.[mi]*")
    }
    assert written == set(pages)


# --------------------------------------------------------------------------------
# The address


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that git knows, to change the address in."""
    for path in FILES:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def changed_files(copy):
    return [path for path in FILES if path.read_bytes() != (copy / path.relative_to(ROOT)).read_bytes()]


def test_address_is_the_one_of_the_configuration_everywhere(copy):
    set_repository(root=copy)
    assert changed_files(copy) == []


def test_one_command_changes_the_address_everywhere(copy):
    old, _ = read_address()
    set_repository("somebody/else", root=copy)
    assert read_address(copy)[0] == "somebody/else"
    owner, name = old.split("/")
    left = [
        path
        for path in copy.rglob("*")
        # The text that the language model reads is frozen, with the addresses of its day.
        if path.is_file()
        and path.name != "book_text.txt"
        and re.search(rf"{owner}(/|\.github\.io/){name}\b", text_of(path))
    ]
    assert left == []
    chapters = [path for path in FILES if path.suffix == ".ipynb"]
    assert {ROOT / "_config.yml", ROOT / "README.md", ROOT / "pyproject.toml", *chapters} <= set(
        changed_files(copy)
    )

    set_repository(old, root=copy)
    assert changed_files(copy) == []


@pytest.mark.parametrize(
    "url", ["course", "http://github.com/a/b", "https://github.com/a", "https://gitlab.com/a/b"]
)
def test_address_that_colab_cannot_open_is_refused(url, capsys):
    assert main([url]) == 2
    assert url in capsys.readouterr().out


# --------------------------------------------------------------------------------
# What is installed


def pins():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_requirements_are_exact_and_are_what_is_installed():
    for pin in pins():
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), pin
        assert importlib.metadata.version(pin.name).split("+")[0] == str(pin.specifier)[2:], pin


def test_requirements_are_complete():
    """Everything that a pinned package needs here is pinned too."""
    pinned = {canonicalize_name(pin.name) for pin in pins()}
    # torch for a GPU brings NVIDIA's libraries, each of an exact version that torch names itself.
    missing = {
        f"{requirement} for {pin.name}"
        for pin in pins()
        for requirement in map(Requirement, importlib.metadata.requires(pin.name) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) not in pinned
        if not re.match(r"nvidia-|cuda-|triton|setuptools", requirement.name)
    }
    assert missing == set()


def test_what_npm_installs_is_exact_and_only_checks():
    asked = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    assert asked["private"]
    assert "dependencies" not in asked, "the course itself needs nothing from npm"
    locked = {path: package for path, package in lock["packages"].items() if path}
    for name, version in asked["devDependencies"].items():
        assert locked[f"node_modules/{name}"]["version"] == version
    for package in locked.values():
        assert package["dev"]
        assert package["integrity"].startswith("sha512-")
        # Where it came from may stand there, a mirror may not.
        home = "https://registry.npmjs.org/"
        assert package.get("resolved", home).startswith(home)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_carries_the_package_whole_and_nothing_else(wheel):
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if path.is_relative_to(ROOT / "mha_lib") and path.suffix in (".py", ".js", ".css", ".typed")
    }
    # The frozen text of the book and its tokenizer.
    ours |= {"mha_lib/book_text.txt", "mha_lib/book_text.json"}
    # What pages read of experiments, and what trains it again.
    ours |= {
        f"mha_lib/_{path.relative_to(ROOT).as_posix()}"
        for path in FILES
        if path.is_relative_to(ROOT / "experiments")
    }
    packed = set(wheel.namelist())
    assert {name for name in packed if ".dist-info/" not in name} == ours
    assert {Path(name).suffix for name in ours} == {
        ".py", ".js", ".css", ".typed", ".txt", ".json", ".safetensors"
    }  # fmt: skip
    assert any(name.endswith("LICENSE") for name in packed)


def test_package_asks_for_ranges_that_leave_torch_alone(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    needs = {need.name: need.specifier for need in map(Requirement, metadata.get_all("Requires-Dist"))}
    assert needs.keys() == {
        "anywidget",
        "babel",
        "jaxtyping",
        "matplotlib",
        "numpy",
        "safetensors",
        "scikit-learn",
        "tokenizers",
        "torch",
        "tqdm",
    }
    assert all(specifier.operator == ">=" for need in needs.values() for specifier in need)
    assert needs["torch"].contains("2.6.0")
    assert metadata["Requires-Python"] == "<3.14,>=3.11"
    assert metadata["License-Expression"] == "MIT"


# --------------------------------------------------------------------------------
# Safety


def test_no_file_can_carry_code_in_data():
    """A pickle runs code when it is opened, and so do the formats made of it."""
    suffixes = {".pt", ".pth", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".bin"}
    assert [path for path in FILES if path.suffix in suffixes] == []
    loads = re.compile(
        r"\bimport (pickle|joblib|dill|marshal)\b|torch\.load\(|allow_pickle=True|(?<![.\w])eval\("
    )
    tests = ROOT / "tests"  # they may: a model must survive being pickled
    sources = [path for path in FILES if path.suffix in (".py", ".ipynb") and not path.is_relative_to(tests)]
    assert [path for path in sources if loads.search(text_of(path))] == []


def test_no_source_names_a_content_network():
    networks = re.compile(r"cdn\.jsdelivr|cdnjs\.|unpkg\.com|esm\.sh|fonts\.(googleapis|gstatic)")
    sources = [path for path in FILES if path != Path(__file__)]
    assert [path for path in sources if networks.search(text_of(path))] == []


def test_nothing_names_a_path_of_somebodys_machine():
    private = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/")
    sources = [path for path in FILES if not path.is_relative_to(ROOT / "tests")]
    assert [path for path in sources if private.search(text_of(path))] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_grants_little_and_runs_pinned_actions(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    uses = re.findall(r"uses: *(\S+)", text)
    assert uses
    assert [action for action in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    for name, job in workflow["jobs"].items():
        steps_of_ours = [step for step in job["steps"] if "run" in step]
        assert not ("permissions" in job and steps_of_ours), f"{name} may write and runs our code"


def test_there_are_workflows():
    assert len(WORKFLOWS) == 1
