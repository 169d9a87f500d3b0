"""The repository around the course: one address, exact pins, a whole wheel, nothing that runs code unseen."""

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import course_files
import lock
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from set_repository import book_address, main, read_address, set_repository

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


def test_a_fork_names_its_own_wheel_after_one_command(copy):
    """The package's metadata has the address, so the wheel of a fork is another one."""
    set_repository("Somebody/else", root=copy)
    digest = course_files.wheel(copy).sha256
    assert digest != course_files.of_this_course()[0].sha256
    named = [*copy.glob("chapters/*.ipynb"), copy / "index.ipynb", copy / "colab" / "attention_pytorch.ipynb"]
    for path in named:
        text = path.read_text(encoding="utf-8")
        assert '\\"https://somebody.github.io/else\\"' in text, path
        assert f'sha256 = \\"{digest}\\"' in text, path


@pytest.mark.parametrize(
    ("repository", "address"),
    [
        ("somebody/else", "https://somebody.github.io/else"),
        ("Some-Body/Course_2", "https://some-body.github.io/Course_2"),
        ("Some-Body/some-body.github.io", "https://some-body.github.io"),
    ],
)
def test_address_of_the_book_is_the_one_of_github_pages(repository, address):
    assert book_address(repository) == address


@pytest.mark.parametrize(
    "url", ["course", "http://github.com/a/b", "https://github.com/a", "https://gitlab.com/a/b"]
)
def test_address_that_colab_cannot_open_is_refused(url, capsys):
    assert main([url]) == 2
    assert url in capsys.readouterr().out


# --------------------------------------------------------------------------------
# What is installed


LOCKS = ["requirements.txt", "requirements-cpu.txt", "requirements-gpu.txt"]
# torch for CPUs or for GPUs, which of them is installed here.
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
    locked = {
        canonicalize_name(pin.name): pin.specifier for pin in pins("requirements.txt", "requirements-gpu.txt")
    }
    assert {name: locked[name] for name in asked} == asked


def test_the_index_of_torch_serves_torch_alone():
    assert {pin.name for pin in pins("requirements-cpu.txt")} == {"torch"}
    assert "torch" not in {pin.name for pin in pins("requirements.txt")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    uses = [line for line in makefile.splitlines() if "index-url" in line]
    assert uses
    assert all("$(TORCH_INDEX)" in line and "-r requirements-cpu.txt" in line for line in uses)
    assert not re.search(r"extra-index|EXTRA_INDEX", makefile + (ROOT / "README.md").read_text("utf-8"))


def test_a_file_of_another_hash_is_not_installed(tmp_path, wheel_file):
    """As `make` installs: by hash, or not at all."""
    flags = re.search(r"^PINNED := \$\(INSTALL\) (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[1]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", *flags.split(), "--dry-run", "--no-index"]
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
    )
    others, cpu, gpu = lock.split(text, [D])
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
        # Where it came from may stand there, a mirror may not.
        home = "https://registry.npmjs.org/"
        assert package.get("resolved", home).startswith(home)


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    course_files.write(folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(wheel_file):
    with zipfile.ZipFile(wheel_file) as archive:
        yield archive


def test_wheel_is_the_one_that_pip_builds(wheel, tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, ROOT], check=True, capture_output=True)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as built:
        assert {name: built.read(name) for name in built.namelist()} == {
            name: wheel.read(name) for name in wheel.namelist()
        }


def test_same_sources_give_the_same_files(copy, tmp_path_factory):
    """In another folder, written at another time with other permissions, in a year of another dating."""
    for path in copy.rglob("*.py"):
        path.chmod(0o700)
        os.utime(path, (1e9, 1e9))
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\nimport course_files, pathlib\n"
    script += (
        f"files = [f(pathlib.Path({str(copy)!r})) for f in (course_files.wheel, course_files.programs)]\n"
    )
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


@pytest.mark.parametrize("path", sorted((ROOT / "chapters").glob("*.ipynb")), ids=lambda path: path.stem)
def test_page_names_the_wheel_that_the_same_build_serves(book, path):
    """The built page itself: what a reader downloads and opens on Colab."""
    [source] = book.glob(f"_sources/chapters/{path.name}")
    [setup] = [cell for cell in json.loads(source.read_text("utf-8"))["cells"] if cell["id"] == "setup"]
    text = "".join(setup["source"])
    address, served, digest = (
        re.search(rf'{name} = "(\S+)"', text)[1] for name in ("book", "wheel", "sha256")
    )
    assert address == book_address(read_address()[0])
    assert hashlib.sha256((book / served).read_bytes()).hexdigest() == digest


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
    assert metadata["Requires-Python"] == ">=3.11"  # Colab may have a newer one than we test
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
        # What may write has only files that another job built, and runs none of them.
        if "permissions" in job:
            assert not any("checkout" in step.get("uses", "") for step in job["steps"]), name
            commands = " ".join(step.get("run", "") for step in job["steps"])
            assert not re.search(r"\b(make|python3?|bash|sh|pip)\b|(^|\s)\./", commands), (
                f"{name} runs our code"
            )
    assert "EXTRA_INDEX" not in text


def test_workflows_do_what_the_course_promises():
    jobs = {}
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        jobs |= {f"{path.stem} {name}": job for name, job in workflow["jobs"].items()}
    assert jobs.keys() == {
        "ci test", "ci non-root", "ci book", "ci deploy", "colab image", "release build", "release publish",
    }  # fmt: skip
    assert jobs["ci test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert "--user reader" in jobs["ci non-root"]["steps"][-1]["run"]
    assert set(jobs["ci book"]["needs"]) == {"ci test".split()[1], "non-root"}
    assert jobs["ci deploy"]["needs"] == "book"
    # These commands, each of which ends the job if it fails.
    runs = {
        name: [step["run"].strip() for step in job["steps"] if "run" in step] for name, job in jobs.items()
    }
    assert runs["ci test"] == ["bash .ci/run"]
    assert runs["ci non-root"][-1].endswith(" make -C /srv/course test")
    assert runs["ci book"] == ["make book"]
    assert runs["colab image"][-1].endswith(' python3 "$IMAGE" /course/tools/run_as_colab.py')
    assert runs["release build"] == ["make book && make test ONLY=tests/book/test_repository.py", "make dist"]
    assert runs["release publish"][0] == "sha256sum --check SHA256SUMS"
    assert not [run for job in runs.values() for run in job if re.search(r"\|\||;|set \+e", run)]
    # What runs there is in this repository.
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert "continue-on-error" not in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake (?:-C \S+ )?([a-z]\w*)", text):
        assert re.search(rf"(?m)^{target}:", makefile), target
    for name in re.findall(r"/course/(\S+\.py)|bash (\S+)", text):
        assert (ROOT / "".join(name)).is_file(), name


def test_ci_runs_every_part_and_fails_with_each(tmp_path):
    """With a `make` that notes what it is asked for, and fails for one part after the other."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(script, encoding="utf-8")
    maker = tmp_path / "bin" / "make"
    maker.parent.mkdir()
    maker.write_text('#!/bin/sh\necho "$*" >>asked\n[ "$*" != "$FAILS" ]\n')
    maker.chmod(0o755)
    parts = ["check", "test", "test-all", "rosetta CHECK=1"]
    for fails in ["nothing", *parts]:
        environment = os.environ | {"PATH": f"{maker.parent}:{os.environ['PATH']}", "FAILS": fails}
        (tmp_path / "asked").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert (tmp_path / "asked").read_text().splitlines() == parts
        assert done.returncode == (0 if fails == "nothing" else 1), done.stdout + done.stderr


def test_workflows_have_no_fault_that_a_linter_knows(tmp_path):
    zizmor = [Path(sys.executable).with_name("zizmor"), "--offline", "--quiet", "--no-progress", "--pedantic"]
    done = subprocess.run([*zizmor, ROOT / ".github" / "workflows"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # And it sees what it is for.
    faulty = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    faulty = re.sub(r"@08c6\w+ # v5.0.0", "@v5", faulty, count=1)
    (tmp_path / "faulty.yml").write_text(faulty, encoding="utf-8")
    done = subprocess.run([*zizmor, tmp_path / "faulty.yml"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "unpinned-uses" in done.stdout + done.stderr
