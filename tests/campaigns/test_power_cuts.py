"""C2b: after a power cut at any moment, everything acknowledged is there and nothing is damaged.

A recording VFS logs every write, truncation, sync and deletion of a store, and the driver logs each
acknowledgement between them. An image is what a disk may contain after a power cut: of each file,
all that was synced, and of the rest everything, nothing, some writes, or torn ones.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from hermes.messages import Inbound, Message, Outbound, TurnCommit
from hermes.store import Rotation, SessionStore
from tests.support.faulty_vfs import (
    Delete,
    Entry,
    FaultyVFS,
    Mark,
    Sync,
    Truncate,
    Write,
)
from tests.support.folders import quick_folder
from tests.support.stores import World

SEED = 20261116
SECTOR = 512
FILES = ("database", "-wal", "-journal")
WAYS = ("keep", "drop", "some", "torn")


# The recording


@attrs.frozen
class Text:
    """A message of this session that starts so."""

    session_id: str
    begins: str


Proof = str | Text


def record(folder: Path, store_class: type[SessionStore] = SessionStore) -> list[Entry]:
    """Open a new store three times, use all verbs that write, and return the log."""
    vfs = FaultyVFS(record=True)
    world = World()
    life = Life(folder / "state.db", vfs)
    for opening in range(3):
        with store_class(life.path, clock=world.clock, vfs=vfs.name) as store:
            life.chat(store, f"s{opening}")
            life.turn(store, f"e{opening}")
            life.compress(store, f"s{opening}")
            if opening:
                store.vacuum()  # checkpoints and truncates the WAL
            life.chat(store, f"t{opening}")
        life.note("closed", "SELECT 1")
    return vfs.log


@attrs.define
class Life:
    """A client that logs each acknowledgement, with a proof that must count 1 from then on."""

    path: Path
    vfs: FaultyVFS

    def note(self, name: str, proof: Proof) -> None:
        self.vfs.note(Mark(name, proof))

    def chat(self, store: SessionStore, session_id: str) -> None:
        store.create_session(session_id)
        self.note(session_id, f"SELECT count(*) FROM sessions WHERE id = '{session_id}'")
        for n in range(8):
            text = f"{session_id} says {n} {'long ' * 40 * (n % 3)}"
            store.append_message(session_id, "user", text, platform_message_id=f"{n}")
            self.note(text[:9], Text(session_id, f"{session_id} says {n} "))
        store.index_pending()

    def turn(self, store: SessionStore, event: str) -> None:
        receipt = store.accept(Inbound("key", event, "hello")).receipt
        self.note(event, f"SELECT count(*) FROM inbox WHERE event_id = '{event}'")
        store.commit_turn(
            TurnCommit(
                session_key="key",
                session_id=receipt.session_id,
                epoch=receipt.epoch,
                revision=store.head(receipt.session_id).revision,
                inbox_ids=[receipt.inbox_id],
                rows=[Message("assistant", f"answer to {event}")],
                outbox=[Outbound("lane", {"text": event})],
            )
        )
        self.note(f"answer {event}", Text(receipt.session_id, f"answer to {event}"))
        self.note(
            f"turn {event}",
            f"SELECT (SELECT count(*) FROM inbox WHERE event_id = '{event}' AND state = 'done') "
            f"AND (SELECT count(*) FROM outbox WHERE body LIKE '%{event}%')",
        )

    def compress(self, store: SessionStore, session_id: str) -> None:
        rotation = Rotation(
            session_id=session_id,
            messages=[Message("user", f"summary of {session_id}")],
            rotation_id=f"rotation {session_id}",
            rewrites=0,
            upto=store.get_messages(session_id)[5].id,
            child_session_id=f"{session_id}-child",
        )
        store.rotate(rotation)
        summary = Text(f"{session_id}-child", f"summary of {session_id}")
        self.note(f"rotation {session_id}", summary)


def record_large(folder: Path, store_class: type[SessionStore] = SessionStore) -> list[Entry]:
    """A recording whose WAL is checkpointed because it is long, and restarted."""
    vfs = FaultyVFS(record=True)
    life = Life(folder / "state.db", vfs)
    with store_class(life.path, clock=World().clock, vfs=vfs.name) as store:
        life.chat(store, "s0")
        for n in range(2):
            store.append_message("s0", "user", f"big {n} {'x' * 4_200_000}")
            life.note(f"big {n}", Text("s0", f"big {n} "))
            life.chat(store, f"t{n}")
    return vfs.log


# Images of a disk


@attrs.define
class Content:
    """The content of a file that is certainly on disk, and the operations since."""

    synced: bytearray | None = None
    since: list[Write | Truncate] = attrs.Factory(list)
    before_delete: bytearray | None = None
    """The content before a deletion that a power cut may undo."""

    def apply(self, entry: Entry) -> None:
        match entry:
            case Write() | Truncate():
                self.since.append(entry)
            case Sync():
                self.synced = self.after(self.since)
                self.since.clear()
            case Delete():
                self.before_delete = None if entry.synced else self.synced
                self.synced = None
                self.since.clear()

    def after(self, entries: list[Write | Truncate]) -> bytearray:
        data = bytearray(self.synced or b"")
        for entry in entries:
            perform(data, entry)
        return data

    def image(self, way: str, rng: random.Random) -> bytes | None:
        """Return the file after a power cut; None if there is none."""
        if self.before_delete is not None and rng.random() < 0.5:
            return bytes(self.before_delete)
        if self.synced is None and not self.since:
            return None
        kept: list[Write | Truncate] = {
            "keep": lambda: list(self.since),
            "drop": list,
            "some": lambda: [entry for entry in self.since if rng.random() < 0.5],
            "torn": lambda: [torn for entry in self.since for torn in tear(entry, rng)],
        }[way]()
        return bytes(self.after(kept))


def perform(data: bytearray, entry: Write | Truncate) -> None:
    """Apply an operation to the bytes of a file."""
    size = entry.size if isinstance(entry, Truncate) else entry.offset
    if len(data) < size:
        data.extend(bytes(size - len(data)))
    if isinstance(entry, Truncate):
        del data[entry.size :]
    else:
        data[entry.offset : entry.offset + len(entry.data)] = entry.data


def tear(entry: Write | Truncate, rng: random.Random) -> list[Write | Truncate]:
    """Return the sectors of a write that reached the disk."""
    if isinstance(entry, Truncate):
        return [entry] if rng.random() < 0.5 else []
    pieces: list[Write | Truncate] = []
    at = 0
    while at < len(entry.data):
        end = min(len(entry.data), at + SECTOR - (entry.offset + at) % SECTOR)
        if rng.random() < 0.6:
            pieces.append(Write(entry.file, entry.offset + at, entry.data[at:end]))
        at = end
    return pieces


@attrs.frozen
class Cut:
    """A moment, and what must be true for every image of it."""

    at: int
    files: dict[str, Content]
    proofs: dict[str, Proof]


def cuts(log: list[Entry], moments: list[int]):
    """Yield the state of the disk at each of the moments, in order."""
    files = {file: Content() for file in FILES}
    proofs: dict[str, Proof] = {}
    wanted = iter(sorted(moments))
    moment = next(wanted, None)
    for at, entry in enumerate(log):
        while moment == at:
            yield Cut(at, files, proofs)
            moment = next(wanted, None)
        if isinstance(entry, Mark):
            proofs[entry.name] = entry.proof
            continue
        if isinstance(entry, Sync) and entry.file != "database" and not files[entry.file].synced:
            # SQLite syncs the folder with the first sync of a WAL or journal that it has created.
            for content in files.values():
                content.before_delete = None
        files[entry.file].apply(entry)


# The campaign


@attrs.define
class Findings:
    """Counts of images and violations."""

    images: int = 0
    acknowledged: int = 0
    lost: list[str] = attrs.Factory(list)
    damaged: list[str] = attrs.Factory(list)
    ways: Counter[str] = attrs.Factory(Counter)

    def __str__(self) -> str:
        return (
            f"{self.images} images, {self.acknowledged} acknowledgements looked up, "
            f"{len(self.lost)} images with losses, {len(self.damaged)} damaged; {dict(self.ways)}"
        )


def cut_power(log: list[Entry], images: int, folder: Path, seed: int = SEED) -> Findings:
    """Cut the power at random moments, and open what is left with the store itself.

    The first moments of a file, where it becomes one, are all tried, in all ways.
    """
    rng = random.Random(seed)
    findings = Findings()
    birth = [moment for moment in range(20) for _ in WAYS][: images // 2]
    moments = birth + [rng.randrange(len(log)) for _ in range(images - len(birth))]
    path = folder / "image.db"
    for cut in cuts(log, moments):
        way = WAYS[findings.images % len(WAYS)]
        lay_out(cut, way, path, rng)
        look(cut, way, path, findings)
    return findings


def lay_out(cut: Cut, way: str, path: Path, rng: random.Random) -> None:
    """Write the files of the image, and no others."""
    for stale in path.parent.glob(f"{path.name}*"):
        stale.unlink()
    path.touch(0o600)  # the store creates the file before SQLite opens it
    for file in FILES:
        data = cut.files[file].image(way, rng)
        if data is not None:
            target = path if file == "database" else Path(f"{path}{file}")
            target.write_bytes(data)


def look(cut: Cut, way: str, path: Path, findings: Findings) -> None:
    """Open the image, check every acknowledgement, and check the whole file."""
    findings.images += 1
    findings.ways[way] += 1
    name = f"entry {cut.at} {way}"
    try:
        with SessionStore(path, clock=World().clock) as store:
            findings.acknowledged += len(cut.proofs)
            lost = [name for name, times in kept(store, cut.proofs).items() if times != 1]
            if damage := store.integrity_check():
                findings.damaged.append(f"{name}: {damage}")
            elif findings.images % 10 == 0 and (wrong := store.check_search()):
                findings.damaged.append(f"{name}: {wrong}")
            if lost:
                findings.lost.append(f"{name}: {lost}")
            store.ensure_session("afterwards")
    except Exception as error:  # noqa: BLE001 - reported as a violation
        findings.damaged.append(f"{name}: {error!r}")


def kept(store: SessionStore, proofs: dict[str, Proof]) -> dict[str, int]:
    """Return the counts of all proofs."""
    sql = {name: proof for name, proof in proofs.items() if isinstance(proof, str)}
    counts = store.snapshot(lambda tx: {name: tx.one(query)[0] for name, query in sql.items()})
    texts: dict[str, list[str]] = {}
    for name, proof in proofs.items():
        if isinstance(proof, Text):
            if proof.session_id not in texts:
                texts[proof.session_id] = texts_of(store, proof.session_id)
            counts[name] = sum(text.startswith(proof.begins) for text in texts[proof.session_id])
    return counts


def texts_of(store: SessionStore, session_id: str) -> list[str]:
    return [message.content or "" for message in store.load(session_id).messages]


@pytest.fixture
def quick():
    with quick_folder() as folder:
        yield folder


def test_no_power_cut_loses_what_was_acknowledged_or_breaks_the_file(
    quick, prove, capsys, campaign
):
    began = time.monotonic()
    seed = campaign.seed(SEED)
    found = cut_power(record(quick), 9700 if prove else 480, quick, seed)
    (quick / "large").mkdir()
    large = cut_power(record_large(quick / "large"), 300 if prove else 20, quick / "large", seed)
    with capsys.disabled():
        print(f"\n{found}; {time.monotonic() - began:.0f} s\nlarge, {large}")  # noqa: T201
    assert found.images + large.images == (10_000 if prove else 500)
    campaign.count(power_cuts=found.images + large.images)
    campaign.check([*found.damaged, *large.damaged, *found.lost, *large.lost])


# Mutants M5: stores that do not wait for the disk


class Normal(SessionStore):
    """A store that syncs at checkpoints only."""

    level = "NORMAL"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._db.execute(f"PRAGMA synchronous = {self.level}")


class Off(Normal):
    """A store that never syncs."""

    level = "OFF"


@pytest.mark.mutant
def test_the_campaign_finds_a_store_that_syncs_only_at_checkpoints(quick):
    found = cut_power(record(quick, Normal), 200, quick)
    assert len(found.lost) > 20, str(found)
    assert found.damaged == []


@pytest.mark.mutant
def test_the_campaign_finds_a_store_that_never_syncs(quick):
    found = cut_power(record(quick, Off), 200, quick)
    assert len(found.lost) + len(found.damaged) > 60, str(found)
