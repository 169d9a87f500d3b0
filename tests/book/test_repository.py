"""The repository around the course: one address, exact pins, whole wheels, nothing that runs code unseen."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import course_files
import lock
import nbformat
import pytest
import set_up
import yaml
from captions import fold_measurements, put_numbers
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release import NAMED, VERSION, notes
from set_repository import (
    PUBLISHED,
    WIDGET_VIEW,
    book_address,
    main,
    read_address,
    set_repository,
    show_captions,
    show_pictures,
    title_folds,
)
from stored_notebooks import notebooks

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


def test_no_page_is_written_and_then_forgotten():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    written = (ROOT / "chapters").glob("*.[mi]*")
    assert {path.relative_to(ROOT).with_suffix("").as_posix() for path in written} == pages


@pytest.mark.parametrize("has_rule", [True, False])
def test_a_clone_has_the_same_line_ends_whatever_git_is_set_to(copy, tmp_path_factory, has_rule):
    """Hashes of data and scripts depend on them, and bash cannot read a script with those of Windows."""
    git = ["git", "-C", str(copy), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    if not has_rule:
        (copy / ".gitattributes").unlink()
    clone = tmp_path_factory.mktemp("clone") / "course"
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "All"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    clone_it = ["git", "clone", "-q", "-c", "core.autocrlf=true", str(copy), str(clone)]
    subprocess.run(clone_it, check=True, capture_output=True)
    assert (b"\r\n" not in (clone / ".ci" / "run").read_bytes()) == has_rule
    if has_rule:
        for path in FILES:
            name = path.relative_to(ROOT)
            assert (clone / name).read_bytes() == (copy / name).read_bytes(), name


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
    copies = [copy / path.relative_to(ROOT) for path in FILES]
    for path in copies:
        os.utime(path, (0, 0))
    set_repository(root=copy)
    assert changed_files(copy) == []
    assert {path.stat().st_mtime for path in copies} == {0}, (
        "`make` would install again what has a newer date"
    )


def test_one_command_changes_the_address_everywhere(copy):
    old, _ = read_address()
    set_repository("somebody/else", root=copy)
    assert read_address(copy)[0] == "somebody/else"
    owner, name = old.split("/")
    left = [
        path
        for path in copy.rglob("*")
        # The text of the language model is frozen, with the addresses of that time.
        if path.is_file()
        and path.name != "book_text.txt"
        and re.search(rf"{owner}(/|\.github\.io/){name}\b", text_of(path))
    ]
    assert left == []
    chapters = [path for path in FILES if path.suffix == ".ipynb"]
    named = {ROOT / name for name in ("_config.yml", "README.md", "pyproject.toml")}
    assert {*named, *chapters} <= set(changed_files(copy))
    for path in [*copy.glob("chapters/*.ipynb"), copy / "index.ipynb"]:  # a fork has its own book
        assert '\\"https://somebody.github.io/else\\"' in path.read_text(encoding="utf-8"), path

    set_repository(old, root=copy)
    assert changed_files(copy) == []


def test_links_to_colab_lead_to_the_published_copies():
    """Git has notebooks that name no packages."""
    opened = re.compile(r"colab\.research\.google\.com/github/[\w.-]+/[\w.-]+/blob/(\w+)/")
    found = {name for path in FILES if path.name != "book_text.txt" for name in opened.findall(text_of(path))}
    assert found == {PUBLISHED}


def pages_by_name():
    """What a link may call a page, in small letters -> its file: title, words of the file's name, chapter."""
    for page in notebooks():
        title = nbformat.read(page, as_version=4).cells[0].source.splitlines()[0].strip("# ")
        kind, _, words = page.stem.partition("_")
        for name in (title.lower().removeprefix("the "), words.replace("_", " ")):
            yield name, page.stem
        if kind.isdigit():
            yield f"chapter {int(kind)}", page.stem


def misleading(text, pages):
    """The links of a text that name a page, or a chapter, and lead to another."""
    for said, target in re.findall(r"(?<!!)\[([^]\[]+)\]\(([^)\s]+)\)", text):
        said = " ".join(said.lower().split())
        named = [re.sub(r"^(the|appendix on|\d) ", "", said), *re.findall(r"chapter \d\b", said)]
        named += [f"chapter {number}" for number in re.findall(r"^(\d) ", said)]
        if {pages.get(name) for name in named} - {Path(target.partition("#")[0]).stem, None}:
            yield said


def test_what_names_a_page_leads_to_it():
    pages = dict(pages_by_name())
    texts = [text_of(path) for path in FILES if path.suffix == ".md"]
    texts += [cell.source for path in notebooks() for cell in nbformat.read(path, as_version=4).cells]
    assert [said for text in texts for said in misleading(text, pages)] == []
    elsewhere = [said for text in texts for said in misleading(re.sub(r"\]\(\S+\)", "](x)", text), pages)]
    assert len(elsewhere) > 100
    assert {"8 what heads learn", "training and controls", "bug zoo", "what heads learn"} <= {*elsewhere}


def test_the_year_of_a_reference_is_in_its_name():
    text = text_of(ROOT / "chapters" / "references.bib")
    years = dict(re.findall(r"(?m)^@\w+\{(\w+), .*\byear=\{(\d+)\}", text))
    assert len(years) == text.count("\n@") + 1
    assert [key for key, year in years.items() if re.findall(r"(?:18|19|20)\d\d", key) != [year]] == []


def test_nothing_derived_is_in_git():
    """A hash of what the build makes would change with each line of the packages."""
    digests = [file.sha256 for file in course_files.of_this_course()]
    notebooks = [path for path in FILES if path.suffix == ".ipynb"]
    named = [path for path in notebooks if any(digest in text_of(path) for digest in digests)]
    assert named == []
    assert not [path for path in notebooks if re.search(r"--hash=sha256:\w|\bsha256 = ", text_of(path))]
    assert {path.parent.relative_to(ROOT).as_posix() for path in notebooks} == {".", "chapters"}


@pytest.mark.parametrize(("repository", "address"), [
    ("somebody/else", "https://somebody.github.io/else"),
    ("Some-Body/Course_2", "https://some-body.github.io/Course_2"),
    ("Some-Body/some-body.github.io", "https://some-body.github.io"),
])  # fmt: skip
def test_address_of_the_book_is_the_one_of_github_pages(repository, address):
    assert book_address(repository) == address


@pytest.mark.parametrize(
    "url", ["course", "http://github.com/a/b", "https://github.com/a", "https://gitlab.com/a/b"]
)
def test_address_that_colab_cannot_open_is_refused(url, capsys):
    assert main([url]) == 2
    assert url in capsys.readouterr().out


# What is installed


LOCKS = [f"requirements{kind}.txt" for kind in ("", "-cpu", "-gpu", "-models", "-paper", "-class")]
# Whichever build of torch, for CPUs or for GPUs, is installed here.
INSTALLED = ["requirements.txt", LOCKS[1 if "+cpu" in importlib.metadata.version("torch") else 2]]


def pins(*names):
    """What files pin, here or on another machine."""
    lines = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names).splitlines()
    return [Requirement(line.removesuffix("\\")) for line in lines if line and line[0] not in "# "]


def pins_here():
    return [pin for pin in pins(*INSTALLED) if pin.marker is None or pin.marker.evaluate()]


def test_requirements_are_exact_and_are_what_is_installed():
    for pin in pins(*LOCKS, "requirements.in"):
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), pin
    for pin in pins_here():
        assert importlib.metadata.version(pin.name) == str(pin.specifier)[2:], pin


def test_requirements_are_complete():
    """Everything that a pinned package needs here is pinned too."""
    pinned = {canonicalize_name(pin.name) for pin in pins_here()}
    missing = {
        f"{requirement} for {pin.name}"
        for pin in pins_here()
        for requirement in map(Requirement, importlib.metadata.requires(pin.name) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) not in pinned
    }
    assert missing == set()


def test_every_requirement_has_hashes_and_comes_from_what_is_asked_for():
    for name in LOCKS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for package in lock.packages(text):
            assert re.fullmatch(r"\S+==.*(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n", package), package
        whole = "".join(lock.packages(text))
        assert whole == "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))
    asked = {canonicalize_name(pin.name): pin.specifier for pin in pins("requirements.in")}
    files = "requirements.txt", "requirements-gpu.txt", "requirements-paper.txt"
    locked = {canonicalize_name(pin.name): pin.specifier for pin in pins(*files)}
    assert {name: locked[name] for name in asked} == asked


def test_the_index_of_torch_serves_torch_alone():
    assert {pin.name for pin in pins("requirements-cpu.txt")} == {"torch"}
    assert "torch" not in {pin.name for pin in pins("requirements.txt")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    # tests/book/test_make.py says for which file the set-up asks another index.
    assert "index-url" not in makefile
    assert not re.search(r"extra-index|EXTRA_INDEX", makefile + (ROOT / "README.md").read_text("utf-8"))


def test_a_file_of_another_hash_is_not_installed(tmp_path, wheel_files):
    """As `make` installs: by hash, or not at all."""
    pip = [sys.executable, "-m", "pip", *set_up.PINNED[1:], "--dry-run", "--no-index"]
    wheel_file = wheel_files["mha-lib"]
    pip += ["--find-links", wheel_file.parent, "-r", tmp_path / "pins.txt", "--target", tmp_path / "into"]
    for digest, expected in ((lock_hash(wheel_file), 0), ("0" * 64, 1)):
        (tmp_path / "pins.txt").write_text(f"mha-lib==0.1.0 --hash=sha256:{digest}\n")
        done = subprocess.run(list(map(str, pip)), capture_output=True, text=True)
        assert done.returncode == expected, done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr


def lock_hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)


def test_lock_divides_what_uv_found():
    text = (
        f"numpy==2.0 ; {lock.EVERYWHERE[3:]} \\\n    --hash=sha256:{A}\n"
        f"nvidia-cublas==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:{B}\n"
        f"torch==2.13.0 ; {lock.EVERYWHERE[3:]} \\\n    --hash=sha256:{C}\n"
        f"triton==3.7 \\\n    --hash=sha256:{B}\n"
        f"pikepdf==10.18.0 \\\n    --hash=sha256:{A}\n"
    )
    others, cpu, gpu, paper = lock.split(text, [D])
    assert paper == f"pikepdf==10.18.0 \\\n    --hash=sha256:{A}\n"
    assert others == f"numpy==2.0 \\\n    --hash=sha256:{A}\n"
    assert cpu == (
        f"torch==2.13.0+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{D}\n"
        f"torch==2.13.0 ; sys_platform == 'darwin' \\\n    --hash=sha256:{C}\n"
    )
    assert re.findall(r"(?m)^[\w-]+", gpu) == ["torch", "nvidia-cublas", "triton"]


def test_lock_reads_the_hashes_of_the_index_for_cpus(tmp_path):
    page = tmp_path / "index.html"
    wheels = {
        "torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl": A,
        "torch-2.13.0%2Bcpu-cp313-cp313-manylinux_2_28_aarch64.whl": B,
        "torch-2.13.0%2Bcpu-cp310-cp310-manylinux_2_28_x86_64.whl": C,  # a Python that we do not test
        "torch-2.13.0%2Bcpu-cp311-cp311-win_amd64.whl": C,
        "torch-2.12.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl": D,
    }
    links = [f'<a href="/whl/{name}#sha256={digest}">{name}</a><br>' for name, digest in wheels.items()]
    page.write_text("\n".join(links))
    assert lock.hashes_for_cpus("2.13.0", page.as_uri()) == [A, B]
    with pytest.raises(OSError, match="No such file"):
        lock.hashes_for_cpus("2.13.0", (tmp_path / "nothing").as_uri())


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
        # A lock file may name the original source, but not a mirror.
        home = "https://registry.npmjs.org/"
        assert package.get("resolved", home).startswith(home)


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory):
    """The served wheels, by the names of their projects."""
    folder = tmp_path_factory.mktemp("wheel")
    *files, _programs = course_files.write(folder)
    return {file.project: folder / file.name for file in files}


@pytest.fixture(scope="module")
def wheels(wheel_files):
    with contextlib.ExitStack() as opened:
        yield {name: opened.enter_context(zipfile.ZipFile(path)) for name, path in wheel_files.items()}


@pytest.mark.parametrize(
    ("project", "most"), [("mha-lib", 130_000), ("attention-check", 80_000), ("mha-course", 8_000_000)]
)
def test_wheel_is_small(wheel_files, project, most):
    assert wheel_files[project].stat().st_size <= most


@pytest.mark.parametrize("project", [".", "attention_check", "mha_course"])
def test_a_wheel_can_be_built_from_an_sdist(tmp_path, project):
    [sdist] = SdistBuilder(str(ROOT / project)).build(directory=str(tmp_path), versions=["standard"])
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()]
    names = []
    for source in (ROOT / project, folder):
        [wheel] = WheelBuilder(str(source)).build(directory=str(tmp_path), versions=["standard"])
        with zipfile.ZipFile(wheel) as built:
            names.append(
                {name for name in built.namelist() if name.endswith((".py", ".json", ".md", ".js", ".css"))}
            )
    assert names[0] == names[1] and len(names[0]) > 10


@pytest.mark.parametrize(
    ("project", "folder"),
    [("mha-lib", ""), ("attention-check", "attention_check"), ("mha-course", "mha_course")],
)
def test_wheel_is_the_one_that_pip_builds(wheels, tmp_path, project, folder):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, ROOT / folder], check=True, capture_output=True)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as built:
        assert {name: built.read(name) for name in built.namelist()} == {
            name: wheels[project].read(name) for name in wheels[project].namelist()
        }


def test_the_judge_works_from_a_wheel_that_is_not_unpacked(tmp_path):
    [wheel] = [file for file in course_files.of_this_course() if file.name.startswith("attention_check")]
    (tmp_path / wheel.name).write_bytes(wheel.content)
    (tmp_path / "theirs.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as own\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import sys, attention_check\n"
         "assert '.whl' in attention_check.__file__; sys.exit(attention_check.main(['theirs:own']))"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{wheel.name}{os.pathsep}."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "judged as:" in done.stdout


def test_same_sources_give_the_same_files(copy, tmp_path_factory):
    """In another folder, written at another time with other permissions, in a year of another dating."""
    for path in copy.rglob("*.py"):
        path.chmod(0o700)
        os.utime(path, (1e9, 1e9))
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\nimport course_files, pathlib\n"
    script += f"root = pathlib.Path({str(copy)!r})\n"
    script += "files = [*course_files.wheels(root), course_files.programs(root)]\n"
    script += "print(*(file.sha256 for file in files))"
    settings = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    found = subprocess.check_output([sys.executable, "-c", script], text=True, env=settings, cwd="/")
    assert found.split() == [file.sha256 for file in course_files.of_this_course()]


def test_the_files_for_colab_hold_no_notebook_and_are_served_with_their_hashes(book):
    folder = book / course_files.FOLDER
    listed = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text("utf-8").splitlines())
    assert {path.name for path in folder.iterdir()} == {*listed, "SHA256SUMS"}
    for file in course_files.of_this_course():
        content = (folder / file.name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256 == listed[file.name]
        with zipfile.ZipFile(folder / file.name) as archive:
            assert not [name for name in archive.namelist() if name.endswith(".ipynb")]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_published_page_names_the_wheels_that_the_same_build_serves(book, path):
    """What a reader downloads and what Colab opens: the stored notebook, with few differences.

    The set-up names the wheels. Of each widget there is a picture or a text, which needs no widget manager.
    A caption with its number stands below its figure, how something was measured in a fold, and folded cells
    begin with a title.
    """
    published = nbformat.read(book / "_sources" / path.relative_to(ROOT), as_version=4)
    stored = nbformat.read(path, as_version=4)
    [setup] = [cell for cell in published.cells if cell.id == "setup"]
    assert f'book = "{book_address(read_address()[0])}"' in setup.source
    served = re.findall(r"@ \{book\}/(\S+) --hash=sha256:(\w+)", setup.source)
    assert [Path(name).name.partition("-")[0] for name, _ in served] == [
        "mha_lib",
        "attention_check",
        "mha_course",
    ]
    for name, digest in served:
        assert hashlib.sha256((book / name).read_bytes()).hexdigest() == digest
    shown = [output.data for cell in stored.cells for output in cell.get("outputs", []) if "data" in output]
    assert all(data.keys() & {"image/png", "text/html"} for data in shown if WIDGET_VIEW in data)
    show_pictures(stored)
    put_numbers(path.stem, stored)
    fold_measurements(stored, printed=False)
    show_captions(stored)
    title_folds(stored)
    [setup.source] = [cell.source for cell in stored.cells if cell.id == "setup"]
    assert published == stored


def packed_by(project):
    """What a wheel must carry: a package without settings and what runs in pages, and what belongs to it."""
    package = project.replace("-", "_")
    left_out = [ROOT / package / name for name in ("pyproject.toml", "_hatch_build.py", "LICENSE")]
    ours = [path for path in FILES if path.is_relative_to(ROOT / package) and path not in left_out]
    ours = {path.relative_to(ROOT).as_posix() for path in ours if "in_page" not in path.parts}
    if project == "mha-course":
        # The experiments, which pages run again on request.
        scripts = [path for path in FILES if path.is_relative_to(ROOT / "experiments")]
        ours |= {f"{package}/_{path.relative_to(ROOT).as_posix()}" for path in scripts}
        ours.add(f"{package}/LICENSE")  # one folder up from its project, where its metadata cannot name it
    return ours


@pytest.mark.parametrize("project", ["mha-lib", "attention-check", "mha-course"])
def test_wheel_carries_the_package_whole_and_nothing_else(wheels, project):
    packed = set(wheels[project].namelist())
    assert {name for name in packed if ".dist-info/" not in name} == packed_by(project)
    kinds = {".py", ".js", ".css", ".typed", ".txt", ".json", ".safetensors", ".md", ".svg"}
    assert {Path(name).suffix for name in packed_by(project)} - {""} <= kinds
    assert any(name.endswith("LICENSE") for name in packed)


@pytest.mark.parametrize("project", ["mha-lib", "attention-check", "mha-course"])
def test_an_index_would_show_what_a_wheel_is(wheels, project):
    [name] = [name for name in wheels[project].namelist() if name.endswith("/METADATA")]
    metadata = Parser().parsestr(wheels[project].read(name).decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(metadata.get_payload().strip()) > 100


NEEDS = {
    "mha-lib": "jaxtyping torch".split(),
    "attention-check": "mha-lib torch".split(),
    "mha-course": """anywidget attention-check babel ipython ipywidgets jaxtyping matplotlib mha-lib numpy
        safetensors scikit-learn tokenizers torch tqdm traitlets""".split(),
}


@pytest.mark.parametrize("project", NEEDS)
def test_packages_ask_for_ranges_that_leave_torch_alone(wheels, project):
    [name] = [name for name in wheels[project].namelist() if name.endswith("METADATA")]
    metadata = Parser().parsestr(wheels[project].read(name).decode())
    asked = [need for need in map(Requirement, metadata.get_all("Requires-Dist")) if need.marker is None]
    assert sorted(need.name for need in asked) == NEEDS[project]
    assert {specifier.operator for need in asked for specifier in need.specifier} == {">="}
    assert all(need.specifier.contains("2.6.0") for need in asked if need.name == "torch")
    assert metadata["Requires-Python"] == ">=3.11"  # Colab may have a newer one than we test
    assert metadata["License-Expression"] == "MIT"


ALONE = """
import importlib, sys
import torch, mha_lib
layer = mha_lib.MultiHeadAttention(12, 3)
output, weights = layer(*3 * [torch.ones(2, 5, 12)], is_causal=True)
assert output.shape == (2, 5, 12) and weights.shape == (2, 3, 5, 5)
theirs = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True)
layer = mha_lib.MultiHeadAttention.from_torch(theirs)
x = torch.randn(2, 5, 12)
torch.testing.assert_close(layer(x, x, x)[0], theirs(x, x, x)[0])
model = mha_lib.Llama(11, 8, 2, 16, 1, max_len=5)
assert model(torch.tensor([[1, 2, 3]]))[0].isfinite().all()
try:
    importlib.import_module("mha_lib.widgets")  # of the course
except ModuleNotFoundError as error:
    assert error.name == "mha_lib.widgets", error
else:
    raise AssertionError("widgets")
try:
    from mha_lib.models.checkpoints import save_checkpoint
    save_checkpoint(None, ".")
except ImportError as error:
    assert "checkpoints need the package safetensors" in str(error), error
else:
    raise AssertionError("safetensors")
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def needed_by(*names):
    """Distributions and all that they need here."""
    found, waiting = set(), list(map(canonicalize_name, names))
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or [])
            asked = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
            waiting += [canonicalize_name(need.name) for need in asked]
    return found


def test_library_needs_torch_and_jaxtyping_alone(wheels, tmp_path):
    """Installed where only these two and what they need are, it computes."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    ours = Path(sysconfig.get_path("purelib"))
    for name in needed_by("torch", "jaxtyping"):
        tops = {path.parts[0] for path in importlib.metadata.files(name) if path.suffix != ".pth"}
        for top in tops - {"..", "__pycache__"}:
            if not (packages / top).is_symlink():
                (packages / top).symlink_to(ours / top)
    wheels["mha-lib"].extractall(packages)
    command = [tmp_path / "venv" / "bin" / "python", "-I", "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not {"mha_course", "matplotlib", "sklearn", "ipywidgets", "tokenizers"} & set(done.stdout.split())


# Safety


def test_no_file_can_carry_code_in_data():
    """A pickle runs code when it is opened, as do formats made of it, unless torch reads weights only."""
    suffixes = {".pt", ".pth", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".bin"}
    assert [path for path in FILES if path.suffix in suffixes] == []
    loads = re.compile(
        r"\bimport (pickle|joblib|dill|marshal)\b|torch\.load\((?![^()]*\bweights_only=True\))"
        r"|allow_pickle=True|(?<![.\w])(?<!def )eval\("
    )
    tests = ROOT / "tests"  # tests may unpickle, because models must survive it
    sources = [path for path in FILES if path.suffix in (".py", ".ipynb") and not path.is_relative_to(tests)]
    # Known mistakes of exercises are edits of the package's own source, which only this module compiles.
    # The grader's judge sends pickles to the process that runs a submission, and opens none that come back.
    # The search stores Sphinx's own cache of a build again, which Sphinx opens.
    own = ["_ext/search_words.py", "attention_check/_texts.py", "mha_course/_judged.py"]
    found = [path for path in sources if loads.search(text_of(path))]
    assert found == [ROOT / name for name in own]


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
        # A job with write access has only files that another job built, and runs none of them.
        if "permissions" in job:
            assert not any("checkout" in step.get("uses", "") for step in job["steps"]), name
            commands = " ".join(step.get("run", "") for step in job["steps"])
            ours = r"\b(make|python3?|bash|sh|pip)\b|(^|\s)\./"
            assert not re.search(ours, commands), f"{name} runs our code"
    assert "EXTRA_INDEX" not in text


def test_each_action_has_one_version_which_a_bot_renews():
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    versions = dict(re.findall(r"uses: *(\S+)@(\S+)", text))
    assert {*re.findall(r"uses: *(\S+)@(\S+)", text)} == {*versions.items()}
    bot = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    assert {update["package-ecosystem"] for update in bot["updates"]} == {"github-actions", "npm"}


def test_workflows_do_what_the_course_promises():
    jobs = {}
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        jobs |= {f"{path.stem} {name}": job for name, job in workflow["jobs"].items()}
    assert jobs.keys() == {
        "ci test", "ci pythons", "ci browsers", "ci weekly", "ci newest", "ci non-root", "ci book",
        "ci deploy", "ci notebooks", "colab image", "release build", "release publish",
    }  # fmt: skip
    # Browsers run on one Python, everything else on all.
    first = next(step["with"] for step in jobs["ci test"]["steps"] if "setup-python" in step.get("uses", ""))
    assert [first["python-version"], *jobs["ci pythons"]["strategy"]["matrix"]["python"]] == [
        "3.11",
        "3.12",
        "3.13",
    ]
    assert "--user reader" in jobs["ci non-root"]["steps"][-1]["run"]
    assert jobs["ci book"]["needs"] == ["test", "pythons"]
    assert jobs["ci deploy"]["needs"] == "book"
    assert jobs["ci notebooks"]["needs"] == "deploy"  # notebooks need the packages
    # These commands; the job ends if one of them fails.
    runs = {
        name: [step["run"].strip() for step in job["steps"] if "run" in step] for name, job in jobs.items()
    }
    assert runs["ci test"] == ["bash .ci/run"]
    assert runs["ci pythons"] == ["make check test-python"]
    assert runs["ci non-root"][-1].endswith(" make -C /srv/course test")
    assert runs["ci book"] == [
        'make models book LANGUAGE="zh_CN zh_TW"'
    ]  # with the file of the sentence model
    # Debian, as user 0, has the packages of both other browsers. Tests of the grader start containers in it.
    privileged = {"image": "debian:12", "options": "--privileged --volume /var/lib/containers"}
    for name in ("ci browsers", "ci weekly", "release build"):
        assert jobs[name]["container"] == ("debian:12" if name == "ci browsers" else privileged)
        assert runs[name][0].startswith("apt-get update -qq && apt-get install --yes ")
        assert runs[name][1] == 'git config --global --add safe.directory "$GITHUB_WORKSPACE"'
    assert jobs["ci browsers"]["strategy"]["matrix"]["browser"] == ["firefox", "webkit"]
    assert runs["ci browsers"][2:] == ['make browsers ONLY="$BROWSER"']
    assert runs["ci weekly"][2:] == ["make weekly"]
    assert " epubcheck " in runs["ci weekly"][0] == runs["release build"][0]
    assert runs["ci newest"] == ["make newest"]
    [when] = {jobs[f"ci {name}"]["if"] for name in ("weekly", "newest", "non-root")}
    assert "'schedule'" in when
    assert f" {PUBLISHED}\n" in runs["ci notebooks"][0] and runs["ci notebooks"][0].endswith(f" {PUBLISHED}")
    image = jobs["colab image"]["steps"]
    assert [step["with"].get("ref") for step in image if "uses" in step] == [None, PUBLISHED]
    run = ' python3 "$IMAGE" /course/tools/run_as_colab.py /course/published'
    assert runs["colab image"][-1].endswith(run)
    noted = 'python3 tools/release.py "$GITHUB_REF_NAME" >notes.md'
    assert runs["release build"][2:] == [noted, "make check test weekly", "make dist"]
    assert runs["release publish"][0] == "sha256sum --check SHA256SUMS"
    assert runs["release publish"][1].endswith(" --verify-tag --notes-file notes.md")
    assert not [run for job in runs.values() for run in job if re.search(r"\|\||;|set \+e", run)]
    # The commands in it exist in this repository.
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert "continue-on-error" not in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake (?:-C \S+ )?([a-z][\w-]*)", text):
        assert re.search(rf"(?m)^{target}:", makefile), target
    for name in re.findall(r"/course/(\S+\.py)|bash (\S+)", text):
        assert (ROOT / "".join(name)).is_file(), name


def test_a_tag_is_released_if_the_changelog_and_all_versions_name_it(copy):
    [version] = VERSION.findall(text_of(copy / "pyproject.toml"))
    changes = copy / "CHANGELOG.md"
    for text in (
        f"## Unreleased\n- {version}\n",
        f"## {version} (May)\n\n## 0.0.1\n- Old.\n",
        f"## {version}1\n- New.\n",
    ):
        changes.write_text(text, encoding="utf-8")
        with pytest.raises(
            ValueError, match=re.escape(f"CHANGELOG.md says nothing in a section ## {version}")
        ):
            notes(f"v{version}", copy)
    changes.write_text(f"# Changes\n\n## {version} (May)\n\n- New.\n\n## 0.0.1\n- Old.\n", encoding="utf-8")
    assert notes(f"v{version}", copy) == "- New."
    for name in NAMED:
        text = text_of(copy / name)
        (copy / name).write_text(text.replace(version, "7.7.7", 1), encoding="utf-8")
        with pytest.raises(ValueError, match=f"{name} has the version 7.7.7, and the tag is v{version}"):
            notes(f"v{version}", copy)
        (copy / name).write_text(text, encoding="utf-8")
    command = [sys.executable, ROOT / "tools" / "release.py", "v7.7.7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("No release: ") and done.stdout == ""


def test_ci_runs_every_part_and_fails_with_each(tmp_path):
    """With a `make` that notes what it is asked for, and fails for one part after the other."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(script, encoding="utf-8")
    maker = tmp_path / "bin" / "make"
    maker.parent.mkdir()
    maker.write_text('#!/bin/sh\necho "$*" >>asked\n[ "$*" != "$FAILS" ]\n')
    maker.chmod(0o755)
    parts = ["check", "test", "test-all", "rosetta-changed"]
    for fails in ["nothing", *parts]:
        environment = os.environ | {"PATH": f"{maker.parent}:{os.environ['PATH']}", "FAILS": fails}
        (tmp_path / "asked").unlink(missing_ok=True)
        options = {"env": environment, "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(["bash", tmp_path / ".ci" / "run"], **options)
        assert (tmp_path / "asked").read_text().splitlines() == parts
        assert done.returncode == (0 if fails == "nothing" else 1), done.stdout + done.stderr


def test_workflows_have_no_fault_that_a_linter_knows(tmp_path):
    zizmor = [Path(sys.executable).with_name("zizmor"), "--offline", "--quiet", "--no-progress", "--pedantic"]
    done = subprocess.run([*zizmor, ROOT / ".github" / "workflows"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # It also detects a real fault.
    faulty = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    faulty = re.sub(r"@08c6\w+ # v5.0.0", "@v5", faulty, count=1)
    (tmp_path / "faulty.yml").write_text(faulty, encoding="utf-8")
    done = subprocess.run([*zizmor, tmp_path / "faulty.yml"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout + done.stderr
