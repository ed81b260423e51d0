"""The files in deploy/: checked by the tools that read them, and against the code."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hermes.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = (DEPLOY / "hermes.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()


def setting(name):
    [value] = re.findall(rf"^{name}=(.+)$", UNIT, re.MULTILINE)
    return value


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "hermes.service"  # with an interpreter that exists here
    unit.write_text(UNIT.replace("/opt/hermes/bin/python", sys.executable))
    assert run("systemd-analyze", "verify", "--man=no", str(unit)) == (0, "")
    unit.write_text(unit.read_text().replace("StateDirectory=", "StateDirektory="))
    assert "StateDirektory" in run("systemd-analyze", "verify", str(unit))[1]


def test_the_linter_finds_nothing_in_the_container_file(tmp_path):
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    assert run(hadolint, "--no-color", str(DEPLOY / "Containerfile")) == (0, "")
    worse = tmp_path / "Containerfile"
    worse.write_text(CONTAINER.replace("USER 10001:10001", "USER hermes"))
    assert "DL3066" in run(hadolint, "--no-color", str(worse))[1]


def test_the_service_has_its_own_user_and_one_folder_for_everything():
    folder = f"/var/lib/{setting('StateDirectory')}"
    assert setting("WorkingDirectory") == folder
    assert setting("Environment") == f"HOME={folder}"
    assert f"--db {folder}/state.db" in setting("ExecStart")
    assert (setting("DynamicUser"), setting("User")) == ("yes", "hermes")
    assert (setting("StateDirectoryMode"), setting("UMask")) == ("0700", "0077")


def test_the_container_has_its_own_user_and_one_volume_for_everything():
    [user] = re.findall(r"^USER (\d+):\1$", CONTAINER, re.MULTILINE)
    assert f"--uid {user} --gid {user}" in CONTAINER
    assert f"-o {user} -g {user} -m 0700 /data" in CONTAINER
    assert re.findall(r"^(?:WORKDIR|VOLUME) (.+)$", CONTAINER, re.MULTILINE) == ["/data", "/data"]
    assert '"--db", "/data/state.db"' in CONTAINER


def test_both_wait_until_the_bot_has_drained():
    config = Settings().config()
    drain = config.drain_timeout + config.hook_drain_timeout
    [stop] = re.findall(r"--stop-timeout (\d+)", CONTAINER)
    assert min(int(setting("TimeoutStopSec")), int(stop)) > drain


def test_a_reload_sends_the_signal_of_a_reload():
    assert setting("ExecReload") == f"/bin/kill -{signal.SIGHUP.name[3:]} $MAINPID"
    assert "podman kill --signal HUP" in CONTAINER


def test_every_file_that_the_image_is_built_from_exists():
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (.+) \S+$", CONTAINER, re.MULTILINE):
        assert all((root / name).exists() for name in line.split())


def test_the_image_has_a_version_of_python_that_the_project_supports():
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    [version] = re.findall(r"^FROM python:([\d.]+)-slim$", CONTAINER, re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
