"""A run over the rows of a query: finished, refused when they have changed, updated, tried; and `encode` of one."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from harness import Workplace, expected, local_engine_only

pytestmark = local_engine_only
QUERY = "SELECT id, body FROM articles ORDER BY rank"


@pytest.fixture
def database(workplace: Workplace) -> Path:
    """Six texts, of which two are equal, and a config for them."""
    path = workplace.folder / "data.sqlite"
    change(path, "CREATE TABLE articles (id INTEGER PRIMARY KEY, rank INTEGER, body TEXT)")
    change(path, "INSERT INTO articles (rank, body) VALUES (2, 'b'), (2, 'a'), (1, 'c'), (3, NULL), (4, 'a'), (5, 'e')")
    source = {"database": "data.sqlite", "query": QUERY}
    output = {"source": source, "column": "body", "columns": ["id"], "where": "id < 6"}
    workplace.write_config("good:make", outputs={"out": output}, chunk={"size": 2})
    return path


def change(path: Path, statement: str) -> None:
    """Have another program write into the database."""
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_run(workplace: Workplace, database: Path) -> None:
    """Row i is row i of the query; the run ends at once the second time; changed rows are refused, and updated."""
    ended = workplace.run()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(workplace.vectors(), expected(["c", "b", "a", None, "a"]))
    source = workplace.manifest()["source"]
    assert (source["files"], source["query"]) == ([str(database)], QUERY)
    assert workplace.run().returncode == 0
    assert [each["event"] for each in workplace.events()].count("staging") == 1

    change(database, "UPDATE articles SET body = 'new' WHERE id = 2")
    ended = workplace.run()
    assert ended.returncode == 78
    assert "--update" in ended.stderr
    ended = workplace.run("--update")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(workplace.vectors(), expected(["c", "b", "new", None, "a"]))
    assert workplace.manifest()["texts_encoded"] == 1

    other = 'outputs.out.source.query="SELECT id, body FROM articles"'
    for command in (["run"], ["run", "--update"], ["plan"]):
        ended = workplace.call(*command, str(workplace.config_path), "--set", other)
        assert ended.returncode == 78, ended.stderr
        assert "no ORDER BY at its end" in ended.stdout + ended.stderr
    ended = workplace.run("--max-rows", "2")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(np.load(workplace.folder / "work-first-2" / "out.npy"), expected(["c", "b"]))


def test_encode(workplace: Workplace, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`encode` of a database asks for a query, then for a column, and names those that there are."""
    monkeypatch.chdir(workplace.folder)
    command = ["encode", str(database), "--model", "m", "-o", "out.npy"]
    ended = workplace.call(*command)
    assert ended.returncode == 78
    assert "add --query" in ended.stderr
    ended = workplace.call(*command, "--query", QUERY)
    assert ended.returncode == 78
    assert "The columns are: 'id', 'body'" in ended.stderr
