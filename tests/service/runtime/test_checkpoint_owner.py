"""A checkpoint that can't be locked: its owner rewrites a file, and others wait whether it still does."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from replayfilter.errors import CheckpointError
from replayfilter.service.runtime.checkpoint import OWNER, Ownership, await_owner
from replayfilter.spark.checkpoint_folder import LocalFolder
from tests.support.service_process import wait_for


def test_a_second_service_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    await_owner(folder)  # nobody has it
    with Ownership(folder, every=0.01), pytest.raises(CheckpointError) as refused:
        await_owner(folder)
    owner = f"in use by process {os.getpid()} on {socket.gethostname()}; stop it first"
    assert str(refused.value).startswith(f"service.checkpoint = {tmp_path}: {owner}")


def test_the_checkpoint_of_a_stopped_service_is_free(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    with Ownership(folder, every=0.01):
        assert folder.read(OWNER) is not None
    assert folder.read(OWNER) is None


@pytest.mark.parametrize("left", [b"{}", b"damaged", json.dumps({"process": 1, "host": "a"}).encode()])
def test_a_killed_service_is_replaced_when_it_has_renewed_nothing_for_a_while(
    tmp_path: Path, left: bytes
) -> None:
    folder = LocalFolder(tmp_path)
    folder.write(OWNER, left)
    await_owner(folder, timeout=0.6)
    with Ownership(folder):
        assert folder.read(OWNER) != left


def test_a_service_that_was_frozen_leaves_the_file_to_its_successor(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)

    def owner() -> dict[str, object]:
        found: dict[str, object] = json.loads(folder.read(OWNER) or b"{}")
        return found

    with Ownership(folder, every=600.0) as frozen:
        wait_for(lambda: owner()["renewed"] == 2, 10, "not renewed")
        first = owner()["id"]
        with Ownership(folder, every=600.0):
            successor = owner()["id"]
            assert successor != first
            frozen.poll()
            assert owner()["id"] == successor
            frozen.__exit__(None, None, None)
            assert owner()["id"] == successor
