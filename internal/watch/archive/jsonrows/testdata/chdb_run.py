"""Runs the task of a directory in chdb, ClickHouse within a process, and prints the answers as JSON."""

import gzip
import json
import pathlib
import sys

from chdb.session import Session

folder = pathlib.Path(sys.argv[1])
task = json.loads((folder / "task.json").read_text())
session = Session(str(folder / "data"))
for statement in task["schema"]:
    session.query(statement)
for body in sorted(folder.glob("*.gz")):
    session.query(task["insert"] + gzip.decompress(body.read_bytes()).decode())
for statement in task["before"] + task["migration"]:
    session.query(statement)
json.dump([session.query(q).bytes().decode() for q in task["queries"]], sys.stdout)
session.close()
