"""SQL of the verbs as PostgreSQL gets it."""

from __future__ import annotations

import pytest

from hermes.store.postgres.transaction import array
from hermes.store.postgres.translate import translate

TRANSLATED = {
    "SELECT * FROM t WHERE a = ? AND b = ?": "SELECT * FROM t WHERE a = $1 AND b = $2",
    "SELECT ?2, ?1, ?": "SELECT $2, $1, $3",
    "SELECT ?1, ?, ?": "SELECT $1, $2, $3",
    "SELECT '?', 'it''s ?', ?": "SELECT '?', 'it''s ?', $1",
    "FROM outbox INDEXED BY outbox_open WHERE lane = ?": "FROM outbox WHERE lane = $1",
    "SELECT value FROM json_each(?)": "SELECT value FROM json_array_elements_text($1)",
    "instr(lower(title), lower(?)) > 0": "strpos(lower(title), lower($1)) > 0",
    "SELECT body ->> '$.platform'": "SELECT (body::json #>> '{platform}')",
    "m.extra ->> '$.provider_data.hermes' = ?": "(m.extra::json #>> '{provider_data,hermes}') = $1",
    "SELECT ' INDEXED BY x ', 'instr('": "SELECT ' INDEXED BY x ', 'instr('",
}


@pytest.mark.parametrize(("sql", "expected"), TRANSLATED.items())
def test_the_translation(sql, expected):
    assert translate(sql) == expected


def test_texts_of_an_array():
    assert array(['a"b', "c\\d", "", "{,}"]) == '{"a\\"b","c\\\\d","","{,}"}'
