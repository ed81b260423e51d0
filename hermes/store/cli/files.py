"""`file`: save an attached file."""

from __future__ import annotations

import hashlib
import sys
from argparse import Namespace
from pathlib import Path

from hermes.errors import StoreError
from hermes.messages import StoredFile
from hermes.sanitize import sanitize
from hermes.store.attachments import rows as attachments
from hermes.store.cli.opening import existing_path, open_current
from hermes.store.cli.output import Printer, format_size, new_file, print_json
from hermes.store.files.blob_reading import reading
from hermes.store.files.contents import CHUNK, FileContents
from hermes.store.transaction import Transaction


def file(options: Namespace) -> int:
    """Save an attached file of any conversation to a new file, or under its name in a folder."""
    with open_current(existing_path(options)) as store:
        found = store.snapshot(lambda tx: _find(tx, options.file))
        if found is None:
            sys.stderr.write(f"There is no file {sanitize(options.file)}.\n")
            return 1
        contents, stored, digest = found
        target: Path = options.to.expanduser()
        if target.is_dir():
            target /= stored.name or stored.id
        _save(contents, stored, digest, target)
    if options.json:
        saved = {"id": stored.id, "media_type": stored.media_type, "file": str(target)}
        print_json({**saved, "bytes": stored.size})
    else:
        size = format_size(stored.size)
        Printer(sys.stdout).line(f"Saved {sanitize(str(target))} ({stored.media_type}, {size}).")
    return 0


def _find(tx: Transaction, file_id: str) -> tuple[FileContents, StoredFile, str] | None:
    row = tx.one(f"SELECT {attachments.COLUMNS}, f.hash FROM files f WHERE f.id = ?", file_id)
    return None if row is None else (tx.db.blobs, attachments.stored(row[:-1]), row[-1])


def _save(contents: FileContents, stored: StoredFile, digest: str, target: Path) -> None:
    hashed = hashlib.sha256()
    with new_file(target) as opened:
        for offset in range(0, stored.size, CHUNK):
            with reading(stored.id):
                data = contents.read(digest, offset, CHUNK)
            hashed.update(data)
            opened.write(data)
        if hashed.hexdigest() != digest:
            raise StoreError(f"the content of {stored.id} is damaged, and was not saved")
