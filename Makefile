# One virtual environment in .venv, filled from pyproject.toml, and five things to do with it.
# Written for GNU make 3.81 (the one of macOS) and a POSIX shell (Git Bash on Windows).

PORT ?= 8888
ARGS ?=
VENV ?= .venv

# The first Python on the PATH that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for p in python3 python python3.14 python3.13 python3.12 python3.11; do \
	if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo "$$p"; exit; fi; done)

ifeq ($(OS),Windows_NT)
PY := $(VENV)/Scripts/python.exe
else
PY := $(VENV)/bin/python
endif

.DEFAULT_GOAL := help
.PHONY: help lab test lint book clean

help:
	@echo "make lab     JupyterLab on the first notebook    PORT=8888  ARGS=\"--no-browser\""
	@echo "make test    the tests, on SQLite and PostgreSQL ARGS=\"-k lease -x\""
	@echo "make lint    ruff, ruff format and mypy"
	@echo "make book    every notebook executed, as HTML and figures, under build/"
	@echo "make clean   remove .venv, build/ and caches (your databases stay)"
	@echo "Each makes $(VENV) when it is missing; PYTHON=python3.12 chooses the interpreter."

# ---------------------------------------------------------------------------- environment
# An editable install sees every change of the code; only a changed pyproject.toml needs pip again.
# The stamps are touched last: an install that was interrupted is done again.

$(VENV)/created:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "No Python 3.11 or newer was found. Install one, or name it: make $(or $(MAKECMDGOALS),lab) PYTHON=/path/to/python3.12"; \
	  exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$("$(PYTHON)" -V 2>/dev/null) || found="not to be run"; \
	  echo "Python 3.11 or newer is needed, and $(PYTHON) is $$found. Name another: make $(or $(MAKECMDGOALS),lab) PYTHON=/path/to/python3.12"; \
	  exit 1; }
	@echo "Making $(VENV) with $$("$(PYTHON)" -V 2>&1)"
	@"$(PYTHON)" -m venv --clear "$(VENV)"
	@touch "$@"

$(VENV)/ready-lab: EXTRAS := lab,postgres
$(VENV)/ready-test: EXTRAS := lab,postgres,test
$(VENV)/ready-lint: EXTRAS := lab,postgres,test,dev

$(VENV)/ready-lab $(VENV)/ready-test $(VENV)/ready-lint: pyproject.toml $(VENV)/created
	@echo "Installing durable-kit[$(EXTRAS)] into $(VENV) (a minute or two the first time)"
	@"$(PY)" -m pip install --quiet --disable-pip-version-check -e ".[$(EXTRAS)]"
	@touch "$@"

# ---------------------------------------------------------------------------- things to do

# Said before anything is installed. JupyterLab runs what its user types, so running it as root
# is a decision that we leave to you.
.PHONY: not-root-by-accident
not-root-by-accident:
	@case " $(ARGS) " in *" --allow-root "*) ;; *) \
	  if [ "$$(id -u 2>/dev/null)" = 0 ]; then \
	    echo "You are root, and JupyterLab does not start as root by itself. Use an ordinary user, or add: make lab ARGS=\"--allow-root\""; \
	    exit 1; fi ;; esac

# The token lets in who has read this terminal, and nobody else. It goes by the environment, since
# every user of the machine can read a command line.
lab: not-root-by-accident $(VENV)/ready-lab
	@first=notebooks/00_start_here.ipynb; \
	[ -f "$$first" ] || first=$$(ls notebooks/*.ipynb 2>/dev/null | head -n 1); \
	JUPYTER_TOKEN=$${JUPYTER_TOKEN:-$$("$(PY)" -c 'import secrets; print(secrets.token_hex(16))')}; \
	export JUPYTER_TOKEN; \
	echo "JupyterLab: http://localhost:$(PORT)/lab$${first:+/tree/$$first}?token=$$JUPYTER_TOKEN"; \
	echo "Stop it with Ctrl-C. If the port is taken: make lab PORT=8889"; \
	exec "$(PY)" -m jupyterlab --ServerApp.port=$(PORT) --ServerApp.port_retries=0 \
	  --LabApp.default_url="/lab$${first:+/tree/$$first}" $(ARGS)

test: $(VENV)/ready-test
	@"$(PY)" -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

# All three speak, also when the first has found something.
lint: $(VENV)/ready-lint
	@status=0; \
	for tool in "ruff check ." "ruff format --check ." mypy; do \
	  echo "$$tool"; "$(PY)" -m $$tool || status=1; \
	done; exit $$status

book: $(VENV)/ready-lab
	@"$(PY)" -m durable_kit.lab.book $(ARGS)

clean:
	rm -rf "$(VENV)" build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
