"""A real JupyterLab with a real kernel, on a free port and with settings of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from widget_page import ROOT

PATIENCE = 300_000  # milliseconds, a safety net

# No user settings, and no news, updates or list of extensions, which need the network.
CONFIG = {
    "ServerApp": {"ip": "127.0.0.1", "port": 0, "open_browser": False, "allow_root": True, "root_dir": "."},
    "LabApp": {
        "news_url": None,
        "check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "extension_manager": "readonly",
    },
}
SETTINGS = {"apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}


@contextlib.contextmanager
def open_jupyterlab(home, settings=None):
    """Start JupyterLab for the files of a folder; give a function from the name of a file to its address.

    `settings` maps names of JupyterLab's own extensions to settings.
    """
    names = "config data runtime settings workspaces ipython".split()
    folders = {name: home / ".jupyter" / name for name in names}
    for folder in folders.values():
        folder.mkdir(parents=True)
    for name, chosen in (SETTINGS | (settings or {})).items():
        path = folders["settings"] / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(chosen))
    (folders["config"] / "jupyter_lab_config.json").write_text(json.dumps(CONFIG))
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(folders["config"]),
        "JUPYTER_DATA_DIR": str(folders["data"]),
        "JUPYTER_RUNTIME_DIR": str(folders["runtime"]),
        "JUPYTERLAB_SETTINGS_DIR": str(folders["settings"]),
        "JUPYTERLAB_WORKSPACES_DIR": str(folders["workspaces"]),
        "IPYTHONDIR": str(folders["ipython"]),
        "PYTHONPATH": str(ROOT),
    }
    log = home / ".jupyter" / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab"],
            cwd=home,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield addresses(server, folders["runtime"], log)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def addresses(server, runtime, log):
    """What the server writes into a file as soon as it listens, as a function."""
    end = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()
        for path in runtime.glob("jpserver-*.json"):
            text = path.read_text()
            if text.endswith("}"):
                info = json.loads(text)
                return lambda name: f"{info['url']}lab/tree/{name}?token={info['token']}"
        time.sleep(0.1)
    raise AssertionError(log.read_text())
